"""The relay's event log as a DataFrame: its schema comes from the relay's own records.

Lists inside a record (``recipients``) stay JSON text, because their form differs from event to
event. Fields of a newer relay that are not known here are left out; its new events are rows like others.
"""

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
from zonemta_py.pipeline.spark.errors import analysed, line_of

IDENTITY = ("node", "seq", "position")
_TYPES: dict[object, DataType] = {int: LongType(), str: StringType(), bool: BooleanType()}


def event_schema() -> StructType:
    """Every field of every event, each with one type; ``date`` and ``hour`` of the segment."""
    found: dict[str, DataType] = {
        "node": StringType(), "seq": LongType(), "position": LongType(), "event": StringType(),
    }  # fmt: skip
    for event in EVENTS:
        for field in fields_of(event):
            kind = _TYPES.get(field.type, StringType())
            if found.setdefault(field.name, kind) != kind:
                found[field.name] = StringType()
    segment: dict[str, DataType] = {"date": DateType(), "hour": IntegerType()}
    return StructType([StructField(name, kind) for name, kind in {**found, **segment}.items()])


def read_events(spark: SparkSession, folder: str) -> DataFrame:
    """The records in ``folder``, each once: sealed segments, or what ``compact`` made of them.

    Raises LocalError when it is no event log.
    """
    try:
        if _is_parquet(spark, folder):
            rows = analysed(spark.read.schema(event_schema()).parquet(folder))
        else:
            segments = spark.read.schema(event_schema()).option("pathGlobFilter", "*.jsonl.zst")
            rows = analysed(segments.json(folder))
    except AnalysisException as exc:
        raise LocalError(f"{folder}: no event log here: {line_of(str(exc))}") from exc
    # As dropDuplicates, which sorts by text twice where this sorts by a number once.
    same = Window.partitionBy(F.xxhash64(*IDENTITY), *IDENTITY).orderBy("time_ms")
    numbered = rows.select("*", F.row_number().over(same).alias("#nth"))
    return numbered.where(F.col("#nth") == 1).select(*rows.columns)


def _is_parquet(spark: SparkSession, folder: str) -> bool:
    """Whether there is a Parquet file in ``folder``: one footer is read."""
    try:
        analysed(spark.read.option("pathGlobFilter", "*.parquet").parquet(folder))
    except AnalysisException:
        return False
    return True
