"""The hash of Spark, without Spark."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pa = pytest.importorskip("pyarrow")
xxhash = pytest.importorskip("zonemta_py.pipeline.spark.arrow")


def test_it_is_that_of_spark(spark: "SparkSession") -> None:
    """Texts of every length up to more than two blocks of 32 bytes, also beyond ASCII, and within a longer array."""
    from pyspark.sql import functions as F

    texts = ["abcdefghijklmnopqrstuvwxyz0123456789é€"[n % 38 :] * 4 for n in range(200)]
    texts = [text[:n] for n, text in enumerate(texts)] + ["", "ä", "user.1@gmail.com"]
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    array = pa.array(texts, pa.string())
    for number in (2, -7):
        both = [row[0] for row in rows.select(F.xxhash64("text", F.lit(number))).collect()]
        assert xxhash.xxhash64(array, number).tolist() == both
    wanted = [row[0] for row in rows.select(F.xxhash64("text")).collect()]
    array = pa.array(["in front", *texts, "behind"], pa.string())
    assert xxhash.xxhash64(array.slice(1, len(texts))).tolist() == wanted
    assert xxhash.xxhash64(pa.array([None, ""], pa.string())).tolist() == [wanted[0]] * 2
