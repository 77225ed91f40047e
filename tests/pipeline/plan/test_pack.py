"""The keys, slots and turns of envelopes."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zonemta_py.pipeline.plan.pack import submission_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pack = pytest.importorskip("zonemta_py.pipeline.plan.pack")


@given(st.lists(st.text("ab@.é\0 ", min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_key_in_spark_is_that_of_python(spark: "SparkSession", addresses: list[str]) -> None:
    rows = spark.createDataFrame(
        [([(each, None) for each in addresses], "default", "p")],
        "recipients array<struct<address string, fields map<string,string>>>, zone string, provider string",
    )  # fmt: skip
    [row] = rows.transform(pack.with_keys("ü", 3)).collect()
    assert row["key"] == submission_key("ü", addresses)
    assert [each["address"] for each in row["recipients"]] == addresses
    assert 0 <= row["slot"] < 3
    assert 0 <= row["turn"] < pack.TURNS
