"""Masked replies, their reasons and templates, in Spark."""

from typing import TYPE_CHECKING

from zonemta_py.pipeline.report.templates import masked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


REPLIES = (
    "550 <x@y.example> no such user",
    "10.0.0.1 is listed",
    "try 4 times, id abcdefg12",
    "see http://a.example/b c",
    "",
    "ünïcode 12",
)


def test_spark_masks_as_python_does(spark: "SparkSession") -> None:
    from pyspark.sql import functions as F

    from zonemta_py.pipeline.report.attempts import mask_reply

    rows = (
        spark.createDataFrame([(text,) for text in REPLIES], "reply string")
        .select("reply", mask_reply(F.col("reply")).alias("kind"))
        .collect()
    )
    assert {row["reply"]: row["kind"] for row in rows} == {text: masked(text) for text in REPLIES}
