"""Normalises the address of every row of a list, or says why it is rejected.

The rule is the relay's own (``smtp.address``), so an address that passes here is not rejected there. An address
of the most common form is recognised by Arrow; only the others go through Python.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.addresses import PLAIN, PLAIN_MAX, address_or_reason
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.pipeline.spark.plain_lists import PlainList
from zonemta_py.pipeline.transforms.blocks import BLOCK, Blocks
from zonemta_py.pipeline.transforms.times import quoted, time_ms
from zonemta_py.smtp.address import folded
from zonemta_py.submit.recipients import BLANKS

CELL_MAX = 1000  # characters that are kept of a rejected cell

CHECKED = ("given", "address", "folded", "reason")
SEND_AT = StructField("send_at_ms", LongType())
_STRING = StringType()
FIELDS = StructField("fields", MapType(_STRING, _STRING))
NORMALISED = StructType(
    [StructField("position", LongType()), *(StructField(name, _STRING) for name in CHECKED)]
)


def normalise_rows(
    email: str,
    merge_fields: Sequence[str] = (),
    send_at: str | None = None,
    blocks: Blocks | None = None,
    *,
    required: Sequence[str] | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Rows of NORMALISED, with FIELDS if there are ``merge_fields`` and SEND_AT with ``send_at``, from a list with POSITION.
    With ``blocks`` they are in rows of ``BLOCK``.

    ``email``: the column of the address. ``merge_fields``: the columns that the message needs; a row without a
    value in one of them that is ``required`` (None: all are) is rejected. ``send_at``: the column of the time from which the recipient's message is sent; a
    row with a text there that is no time is rejected.
    """
    extra = [*([FIELDS] if merge_fields else []), *([SEND_AT] if send_at else [])]
    schema = StructType([*NORMALISED, *extra])
    needs = bool(extra)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = check_addresses(batch.column("given"), batch.column("problem") if needs else None)
            others = [batch.column(each.name) for each in extra]
            yield pa.RecordBatch.from_arrays(
                [batch.column("position"), *columns, *others], names=schema.names
            )

    def transform(rows: DataFrame) -> DataFrame:
        given = F.btrim(F.coalesce(F.col(quoted(email)).cast("string"), F.lit("")), F.lit(BLANKS))
        columns = [F.col(f"`{POSITION}`").alias("position"), given.alias("given")]
        problems = [
            F.when(F.col(quoted(name)).isNull(), F.lit(f"no value for '{name}'"))
            for name in (merge_fields if required is None else required)
        ]
        if merge_fields:
            columns.append(_fields(merge_fields).alias("fields"))
        if send_at:
            at_ms = time_ms(send_at, rows.schema[send_at].dataType)
            columns.append(at_ms.alias("send_at_ms"))
            text = F.btrim(F.col(quoted(send_at)).cast("string"))
            problem = F.concat(
                F.lit(f"no time in '{send_at}': '"), F.substring(text, 1, 100), F.lit("'")
            )
            problems.append(F.when((text != "") & at_ms.isNull(), problem))
        if needs:
            columns.append(F.coalesce(F.lit(None).cast("string"), *problems).alias("problem"))
        if blocks is not None:
            return rows.select(*columns).mapInArrow(lambda each: blocks.write(check(each)), BLOCK)
        return rows.select(*columns).mapInArrow(check, schema)

    return transform


def normalise_plain(listed: PlainList, blocks: Blocks) -> Callable[[SparkSession], DataFrame]:
    """As ``normalise_rows`` with ``blocks``, from a list that tasks read themselves."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("id").to_pylist():
                position, given = listed.read(part)
                arrays = [position, *check_addresses(given)]
                yield pa.RecordBatch.from_arrays(arrays, names=NORMALISED.names)

    def read(spark: SparkSession) -> DataFrame:
        parts = spark.range(0, listed.parts, 1, listed.tasks)
        return parts.mapInArrow(lambda each: blocks.write(check(each)), BLOCK)

    return read


def _fields(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), F.col(quoted(name)).cast("string"))]
    return F.create_map(*pairs).cast("map<string,string>")


def check_addresses(given: pa.StringArray, problems: pa.StringArray | None = None) -> list[pa.Array]:
    """The columns CHECKED of ``given``: its text where it differs from the address, the address, its form for comparison
    where that is not simply the lower case of ASCII, and the reason why there is no address.

    ``problems``: for each row why it is rejected although its address is valid, or null.
    """
    is_plain = pc.and_(
        pc.match_substring_regex(given, rf"\A{PLAIN}\z"), pc.less_equal(pc.utf8_length(given), PLAIN_MAX)
    )
    if problems is not None:
        is_plain = pc.and_(is_plain, pc.is_null(problems))
    nulls = pa.nulls(len(given), pa.string())
    if pc.all(is_plain, min_count=0).as_py():
        return [nulls, given, nulls, nulls]
    is_other = pc.invert(is_plain)
    others = None if problems is None else problems.filter(is_other).to_pylist()
    texts, found, forms, reasons = _checked(given.filter(is_other).to_pylist(), others)
    return [
        pc.replace_with_mask(column, is_other, pa.array(values, pa.string()))
        for column, values in ((nulls, texts), (given, found), (nulls, forms), (nulls, reasons))
    ]


def _checked(
    texts: Sequence[str], problems: Sequence[str | None] | None
) -> tuple[list[str | None], ...]:
    """The columns CHECKED as lists; None for what is not there."""
    rows: list[tuple[str | None, ...]] = []
    for text, problem in zip(texts, problems or repeat(None, len(texts)), strict=True):
        address, reason = address_or_reason(text)
        if address is not None and problem is not None:
            address, reason = None, problem
        form = None if address is None or address.isascii() else folded(address)
        rows.append((None if text == address else text[:CELL_MAX], address, form, reason))
    return tuple(map(list, zip(*rows, strict=True)))
