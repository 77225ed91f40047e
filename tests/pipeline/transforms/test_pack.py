"""Envelopes: recipients, keys, slots and turns."""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zonemta_py.pipeline.rules.submission_keys import submission_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def packed(spark: "SparkSession", rows: list[tuple[str, str]], per_envelope: int | None) -> list[Any]:
    """Envelopes of rows of address and provider, in two slots."""
    from zonemta_py.pipeline.transforms.pack import Packing, pack_envelopes

    planned = spark.createDataFrame(
        [(address, "default", provider, {"name": "x"}) for address, provider in rows],
        "address string, zone string, provider string, fields map<string,string>",
    )
    sizes = planned.groupBy("provider").count().withColumnRenamed("count", "size")
    packing = Packing("june", 2, per_envelope)
    small = sum(row["size"] for row in sizes.collect() if row["size"] < packing.small_max)
    return planned.transform(pack_envelopes(packing, sizes, small)).collect()


def test_one_envelope_for_each_recipient(spark: "SparkSession") -> None:
    found = packed(spark, [(f"u{n}@x.example", "x.example") for n in range(5)], None)
    assert sorted(row["recipients"][0]["address"] for row in found) == [
        f"u{n}@x.example" for n in range(5)
    ]
    assert all(row["recipients"][0]["fields"] == {"name": "x"} for row in found)
    assert all(row["key"] == submission_key("june", [row["recipients"][0]["address"]]) for row in found)


def test_small_providers_share_envelopes(spark: "SparkSession") -> None:
    """``SMALL_ENVELOPES`` envelopes of one provider are enough for envelopes of its own."""
    from zonemta_py.pipeline.transforms.pack import SHARED, SMALL_ENVELOPES, TURNS

    large = [(f"u{n}@big.example", "big.example") for n in range(2 * SMALL_ENVELOPES)]
    small = [(f"u@d{n}.example", f"d{n}.example") for n in range(2 * SMALL_ENVELOPES - 1)]
    found = packed(spark, large + small, 2)
    members = {"big.example": 0, SHARED: 0}
    for row in found:
        addresses = [each["address"] for each in row["recipients"]]
        assert 1 <= len(addresses) <= 2
        assert {address.endswith("@big.example") for address in addresses} == {
            row["provider"] == "big.example"
        }
        assert row["key"] == submission_key("june", addresses)
        assert row["slot"] in (0, 1)
        assert 0 <= row["turn"] < TURNS
        members[row["provider"]] += len(addresses)
    assert members == {"big.example": len(large), SHARED: len(small)}
    assert len(found) == 2 * SMALL_ENVELOPES, "all but one are full"


def test_a_provider_of_many_groups(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has one envelope that is not full at most; every recipient is in one."""
    from zonemta_py.pipeline.transforms import pack

    monkeypatch.setattr(pack, "GROUP_ROWS", 100)
    found = packed(spark, [(f"u{n}@big.example", "big.example") for n in range(1000)], 7)
    members = [each["address"] for row in found for each in row["recipients"]]
    assert sorted(members) == sorted(f"u{n}@big.example" for n in range(1000))
    assert 143 <= len(found) <= 143 + 10


@given(st.lists(st.text("ab@.é\0 ", min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_key_in_spark_is_that_of_python(spark: "SparkSession", addresses: list[str]) -> None:
    from zonemta_py.pipeline.transforms.pack import Packing, pack_envelopes

    rows = spark.createDataFrame([(each, "default", "p") for each in addresses], "address string, zone string, provider string")  # fmt: skip
    sizes = rows.groupBy("provider").count().withColumnRenamed("count", "size")
    [row] = rows.transform(pack_envelopes(Packing("ü", 1, 10), sizes, len(addresses))).collect()
    assert row["key"] == submission_key("ü", addresses)
