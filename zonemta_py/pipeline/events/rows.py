"""The events of a log as rows: of Spark (``read_events``), or of Arrow from the JSON lines (``EventDecoder``).

The schema is derived from the relay's event classes. Lists inside an event (``recipients``) stay JSON text, because their form differs
between events. Unknown fields of a newer relay are dropped; its unknown events are rows like all others.

An *attempt* has one of ATTEMPTS; one that is not delivered is a *failure*. Its provider, and the kind and class of its reply, are
columns that the jobs share: no job has a rule of its own for them. The pipeline looks up no MX hosts: an event names the provider of its
domain; where it does not, the ``domains`` of the relay's table (``config/providers.yaml``) do, and any other domain is its own provider.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from zonemta_py.config.providers import ProviderTable, load_providers
from zonemta_py.core.codec import fields_of, from_json, to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events.schema import EVENTS
from zonemta_py.pipeline.events.log import OF_SEGMENTS, EventLog, part_lines
from zonemta_py.pipeline.events.replies import KIND_MAX, MASKS, class_of, masked
from zonemta_py.pipeline.spark.files import TABLE, as_read
from zonemta_py.pipeline.spark.session import analysed, error_line
from zonemta_py.submit.recipients import BLANKS

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ATTEMPTS = ("delivered", "deferred", "bounced", "expired")
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


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions take it: a dot or a space in it has no meaning."""
    return f"`{name.replace('`', '``')}`"


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


# ---- Attempts: the provider of the domain, the kind and the class of the reply.


def listed_domains(table: ProviderTable) -> dict[str, str]:
    """The provider of each domain that ``table`` lists."""
    return {domain: name for name, each in table.providers.items() for domain in each.domains}


PROVIDERS = listed_domains(load_providers(None, shipped=True))


def provider_of(domain: str) -> str:
    """The provider of a normalised domain: a name of the shipped table, or the domain itself."""
    return PROVIDERS.get(domain, domain)


def named_provider() -> Column:
    """The provider of an event: the one that it names, which the relay knew by the hosts; else that of its domain."""
    return F.coalesce(F.nullif("provider", F.lit("")), provider("domain"))


def provider(domain: str) -> Column:
    """The provider of a domain, as ``provider_of``."""
    table = F.create_map(*(F.lit(text) for pair in PROVIDERS.items() for text in pair))
    return F.coalesce(F.try_element_at(table, F.col(domain)), F.col(domain))


def reply_kinds(replies: pa.Array) -> pa.Array:
    """The kind of each reply.

    What the digits are makes no difference to it, so that few replies are left to be masked.
    """
    encoded = pc.replace_substring_regex(replies, r"[0-9]", "0").dictionary_encode()
    kinds = pa.array([masked(text)[:KIND_MAX] for text in encoded.dictionary.to_pylist()], pa.string())
    return kinds.take(encoded.indices)


def reply_kind(reply: Column) -> Column:
    """The kind of a reply, in Spark."""
    for pattern, placeholder in MASKS:
        reply = F.regexp_replace(reply, pattern, placeholder)
    return F.substring(reply, 1, KIND_MAX)


def classes_of(replies: pa.Table | pa.RecordBatch, text: str) -> list[str]:
    """The class of each row, from ``class``, ``phase``, ``code``, ``status`` and the column ``text``."""
    columns = (replies.column(name).to_pylist() for name in ("class", "phase", "code", "status", text))
    return [class_of(*each) for each in zip(*columns, strict=True)]


def with_classes(failures: DataFrame) -> DataFrame:
    """``failures``, rows of events, each with its ``class``."""
    return failures.mapInArrow(_with_classes, failures.schema)


def _with_classes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        has_class = pc.fill_null(pc.not_equal(batch.column("class"), ""), False)
        if not pc.all(has_class, min_count=0).as_py():
            classes = pa.array(classes_of(batch, "reply"), pa.string())
            batch = batch.set_column(batch.schema.get_field_index("class"), "class", classes)
        yield batch


# ---- JSON lines by Arrow, with the values that Spark's reader of JSON has. Attempts are most of a log, and have the same few fields; others are decoded one by one.

BLOCK_BYTES = 4 << 20  # of JSON that is decoded at once
OTHER_LINES = 5000  # that are decoded at once
TAGS = "tags"
NUL = "\0"  # between tags, which rarely contain one
INT_MAX = (1 << 63) - 1
_ALWAYS = ("node", "seq", "position", "event")
_NAMES = tuple(f'"event":"{name}"'.encode() for name in ATTEMPTS)


class EventDecoder:
    """Decodes lines to tables of ``schema``: that of ``event_schema`` without the date and the hour of the segment."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        events = [event for event in EVENTS if event.name in ATTEMPTS]
        fields = {field.encode_name for event in events for field in fields_of(event)}
        self._of_attempts = pa.schema(
            [
                pa.field(each.name, pa.list_(pa.string())) if each.name == TAGS else each
                for each in schema
                if each.name in fields.union(_ALWAYS)
            ]
        )

    def tables(self, frames: Iterable[bytes]) -> Iterator[pa.Table]:
        """The events in whole lines; their order is not kept."""
        attempts: list[bytes] = []
        others: list[bytes] = []
        size = 0
        for frame in frames:
            flat, more = _divided(frame)
            others += more
            if len(others) >= OTHER_LINES:
                yield self._decoded_one_by_one(others)
                others = []
            attempts.append(flat)
            size += len(flat)
            if size >= BLOCK_BYTES:
                yield self._decoded(b"".join(attempts))
                attempts, size = [], 0
        if size:
            yield self._decoded(b"".join(attempts))
        if others:
            yield self._decoded_one_by_one(others)

    def _decoded(self, lines: bytes) -> pa.Table:
        reading = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        options = pj.ParseOptions(explicit_schema=self._of_attempts, unexpected_field_behavior="ignore")
        try:
            found = pj.read_json(pa.BufferReader(lines), reading, options).combine_chunks()
        except pa.ArrowInvalid:  # a field of another type: of a newer relay
            return self._decoded_one_by_one(lines.splitlines())
        tags = found.column(TAGS)
        texts = _as_json(tags.chunk(0) if tags.num_chunks else pa.array([], tags.type))
        if texts is None:
            return self._decoded_one_by_one(lines.splitlines())
        found = found.set_column(found.schema.get_field_index(TAGS), TAGS, texts)
        missing = pa.nulls(found.num_rows)
        columns = [
            found.column(each.name) if each.name in found.column_names else missing.cast(each.type)
            for each in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def _decoded_one_by_one(self, lines: Iterable[bytes]) -> pa.Table:
        records: list[Mapping[str, Any]] = list(map(from_json, lines))
        present = set[str]().union(*records)
        columns = [
            pa.array(_values((record.get(each.name) for record in records), each.type), each.type)
            if each.name in present
            else pa.nulls(len(records), each.type)
            for each in self.schema
        ]
        return pa.table(columns, schema=self.schema)


def _divided(frame: bytes) -> tuple[bytes, list[bytes]]:
    """The lines of attempts together, and all others. In a text of JSON the quotes of a name would be escaped."""
    if sum(map(frame.count, _NAMES)) == frame.count(b"\n"):
        return frame, []
    attempts: list[bytes] = []
    others: list[bytes] = []
    for line in frame.splitlines(keepends=True):
        (attempts if any(name in line for name in _NAMES) else others).append(line)
    return b"".join(attempts), others


def _as_json(tags: pa.ListArray) -> pa.StringArray | None:
    """The text of each list of texts; None where it has to be made from the line."""
    each = tags.flatten()
    if each.null_count or pc.any(pc.match_substring(each, NUL)).as_py():
        return None
    joined = pc.binary_join(tags, NUL).dictionary_encode()
    texts = pa.array(
        [to_json(text.split(NUL)).decode() for text in joined.dictionary.to_pylist()], pa.string()
    )
    return pc.if_else(pc.equal(pc.list_value_length(tags), 0), "[]", texts.take(joined.indices))


def _values(found: Iterable[Any], kind: pa.DataType) -> list[Any]:
    """Values as Spark reads them: null where one does not fit; the JSON of what is no text."""
    if pa.types.is_string(kind):
        return [each if each is None or type(each) is str else to_json(each).decode() for each in found]
    if pa.types.is_boolean(kind):
        return [each if type(each) is bool else None for each in found]
    return [each if type(each) is int and -INT_MAX - 1 <= each <= INT_MAX else None for each in found]


# ---- Times in lists and tables of others.

EARLIEST_MS = 631_152_000_000  # 1990: an earlier time is an error, such as 0 for "never"
# A number from MS_FROM on is in milliseconds; a larger one is not a time.
MS_FROM, MS_END = 10**11, 10**14
NUMBER = r"\A[0-9]{9,14}(?:\.[0-9]+)?\z"
BASIC_DAY = r"\A[0-9]{8}\z"  # 20261101: as seconds it would be in 1970
ISO = (
    r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?)?\z"
)
MINUTE = r"([T ][0-9]{2}:[0-9]{2})(?=\z| ?[ZUG+-])"


def time_ms(column: str, kind: DataType) -> Column:
    """Unix milliseconds of a time, a date, an ISO 8601 text, or a number of seconds or milliseconds; else null."""
    found = F.col(quoted(column))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        ms = F.unix_millis(found.cast("timestamp"))
    else:
        if isinstance(kind, DoubleType | FloatType | DecimalType):
            found = found.try_cast("decimal(20,3)")  # a double as text has an exponent
        text = F.btrim(found.cast("string"), F.lit(BLANKS))
        number = F.when(text.rlike(NUMBER), text.cast("double"))
        basic = F.concat_ws(
            "-", F.substring(text, 1, 4), F.substring(text, 5, 2), F.substring(text, 7, 2)
        )
        whole = F.regexp_replace(text, MINUTE, "$1:00")  # Spark wants seconds before an offset
        iso = F.when(text.rlike(BASIC_DAY), basic).when(text.rlike(ISO), whole)
        ms = F.coalesce(
            F.when(number < MS_FROM, number * 1000).when(number < MS_END, number).cast("long"),
            F.unix_millis(F.try_to_timestamp(iso)),
        )
    return F.when(ms >= EARLIEST_MS, ms)
