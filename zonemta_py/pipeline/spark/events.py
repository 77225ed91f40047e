"""The relay's event log as a DataFrame, with a schema derived from the relay's event classes.

Lists inside an event (``recipients``) stay JSON text, because their form differs between events.
Unknown fields of a newer relay are dropped; its unknown events are rows like all others.
"""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from zonemta_py.core.codec import fields_of
from zonemta_py.core.errors import LocalError
from zonemta_py.events.schema import EVENTS
from zonemta_py.pipeline.spark.damage import Damage, readable_lines
from zonemta_py.pipeline.spark.exceptions import analysed, error_line

IDENTITY = ("node", "seq", "position")
_TYPES: dict[object, DataType] = {int: LongType(), str: StringType(), bool: BooleanType()}


def event_schema() -> StructType:
    """Every field of every event, each with one type, and ``date`` and ``hour`` of the segment."""
    types: dict[str, DataType] = {
        "node": StringType(), "seq": LongType(), "position": LongType(), "event": StringType(),
    }  # fmt: skip
    for event in EVENTS:
        for field in fields_of(event):
            kind = _TYPES.get(field.type, StringType())
            if types.setdefault(field.name, kind) != kind:
                types[field.name] = StringType()
    segment: dict[str, DataType] = {"date": DateType(), "hour": IntegerType()}
    return StructType([StructField(name, kind) for name, kind in {**types, **segment}.items()])


def read_events(spark: SparkSession, path: str, damage: Sequence[Damage] = ()) -> DataFrame:
    """Every event below ``path`` once: from sealed segments, or from the Parquet files of ``compact``.

    Of the damaged segments in ``damage`` (from ``log_damage``) it reads what can be read. Raises LocalError when ``path`` is not an event log.
    """
    try:
        if _is_parquet(spark, path):
            rows = analysed(spark.read.schema(event_schema()).parquet(path))
        else:
            rows = analysed(_read_segments(spark, path, [each.path for each in damage if each.path]))
    except AnalysisException as exc:
        raise LocalError(f"{path}: no event log here: {error_line(str(exc))}") from exc
    # Does what dropDuplicates does, which sorts by text twice; this sorts by a number once.
    same = Window.partitionBy(F.xxhash64(*IDENTITY), *IDENTITY).orderBy("time_ms")
    numbered = rows.select("*", F.row_number().over(same).alias("#nth"))
    return numbered.where(F.col("#nth") == 1).select(*rows.columns)


def _read_segments(spark: SparkSession, path: str, damaged: Sequence[str]) -> DataFrame:
    segments = spark.read.schema(event_schema()).option("pathGlobFilter", "*.jsonl.zst")
    if not damaged:
        return segments.json(path)
    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.jsonl.zst").load(path)
    found = files.where(~F.col("path").isin(*damaged)).select("path").collect()
    records = F.from_json("line", event_schema())
    rows = readable_lines(spark, damaged).select("path", records.alias("record"))
    readable = rows.select("record.*", "path").transform(_with_hour_of_file)
    if not found:
        return readable
    whole = segments.json([row["path"] for row in found]).select("*", "_metadata.file_path")
    return (
        whole.withColumnRenamed("file_path", "path").transform(_with_hour_of_file).unionByName(readable)
    )


def _with_hour_of_file(rows: DataFrame) -> DataFrame:
    """``date`` and ``hour`` from the names of the directories: Spark takes none from those of single files."""
    date = F.to_date(F.nullif(F.regexp_extract("path", r"/date=([0-9-]+)/", 1), F.lit("")))
    hour = F.nullif(F.regexp_extract("path", r"/hour=([0-9]+)/", 1), F.lit("")).cast("int")
    return rows.withColumns({"date": date, "hour": hour}).drop("path")


def _is_parquet(spark: SparkSession, path: str) -> bool:
    """Whether there is a Parquet file in ``path``; reads one footer."""
    try:
        analysed(spark.read.option("pathGlobFilter", "*.parquet").parquet(path))
    except AnalysisException:
        return False
    return True
