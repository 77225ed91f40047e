"""The relay's event log as a DataFrame, with a schema derived from the relay's event classes.

Lists inside an event (``recipients``) stay JSON text, because their form differs between events.
Unknown fields of a newer relay are dropped; its unknown events are rows like all others.
"""

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
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
from zonemta_py.pipeline.spark.event_log import EventLog, part_lines
from zonemta_py.pipeline.spark.exceptions import analysed, error_line
from zonemta_py.pipeline.spark.lists import TABLE
from zonemta_py.pipeline.spark.segment_files import OF_SEGMENTS
from zonemta_py.pipeline.spark.storage import as_read
from zonemta_py.pipeline.transforms.times import quoted

IDENTITY = ("node", "seq", "position", "event")  # columns that every event has

_TYPES: dict[object, DataType] = {int: LongType(), str: StringType(), bool: BooleanType()}


def event_schema() -> StructType:
    """Every field of every event, each with one type, and ``date`` and ``hour`` of the segment."""
    types: dict[str, DataType] = {
        "node": StringType(), "seq": LongType(), "position": LongType(), "event": StringType(),
    }  # fmt: skip
    for event in EVENTS:
        for field in fields_of(event):
            kind = _TYPES.get(field.type, StringType())
            if types.setdefault(field.encode_name, kind) != kind:
                types[field.encode_name] = StringType()
    segment: dict[str, DataType] = {"date": DateType(), "hour": IntegerType()}
    return StructType([StructField(name, kind) for name, kind in {**types, **segment}.items()])


def read_events(spark: SparkSession, log: EventLog) -> DataFrame:
    """Every event of ``log`` once: from sealed segments, or from the Parquet files or the table of ``compact``.

    Of damaged segments it reads what can be read. Raises LocalError when there is no event log any more.
    """
    try:
        if log.path.startswith(TABLE):
            return _read_table(spark, log.path)
        if log.is_compacted:
            return analysed(spark.read.schema(event_schema()).parquet(as_read(log.path)))
        return analysed(_read_segments(spark, log))
    except AnalysisException as exc:
        raise LocalError(f"{log.path}: no event log here: {error_line(str(exc))}") from exc


def _read_table(spark: SparkSession, source: str) -> DataFrame:
    rows = analysed(spark.table(source.removeprefix(TABLE)))
    for name in IDENTITY:
        if name not in rows.columns:
            raise LocalError(f"{source}: no table of events, because it has no column {name}")
    return with_columns_of(rows, event_schema())


def with_columns_of(rows: DataFrame, schema: StructType) -> DataFrame:
    """The columns of ``schema`` in its order; one that ``rows`` does not have is null."""
    return rows.select(
        *(
            F.col(quoted(each.name))
            if each.name in rows.columns
            else F.lit(None).cast(each.dataType).alias(each.name)
            for each in schema
        )
    )


def _read_segments(spark: SparkSession, log: EventLog) -> DataFrame:
    segments = spark.read.schema(event_schema()).options(**OF_SEGMENTS)
    file = F.col("_metadata.file_path").alias("path")
    if not log.parts and not log.known:
        return _with_hour_of_file(log.listed(segments.json(as_read(log.path)).select("*", file)))
    whole = [path for path in log.segments if path not in (log.parts or {})]
    found = spark.createDataFrame([], event_schema())
    if whole:
        rows = segments.json(list(map(as_read, whole))).select("*", file)
        found = found.unionByName(_with_hour_of_file(rows))
    if any((log.parts or {}).values()):
        record = F.from_json("line", event_schema()).alias("record")
        rows = part_lines(spark, log).select("path", record).select("record.*", "path")
        found = found.unionByName(_with_hour_of_file(rows))
    return found


def _with_hour_of_file(rows: DataFrame) -> DataFrame:
    """``date`` and ``hour`` from the names of the directories: Spark takes none from those of single files."""
    date = F.to_date(F.nullif(F.regexp_extract("path", r"/date=([0-9-]+)/", 1), F.lit("")))
    hour = F.nullif(F.regexp_extract("path", r"/hour=([0-9]+)/", 1), F.lit("")).cast("int")
    return rows.withColumns({"date": date, "hour": hour}).drop("path")
