"""Classifies the rows of a list: each is planned, or left out for a reason.

A row is rejected, else a duplicate, else suppressed, else outside the sample, of another variant, or planned; the counts add up to
the input. Spark brings equal addresses together, in the order of the list; Arrow then compares each row with the one before it.

The rule of addresses is the relay's own (``smtp.address``), so an address that passes here is not rejected there. An address of the most
common form is recognised by Arrow; only the others go through Python.

The place of a recipient, a number from 0 to 1, is a hash of its address and of the campaign: it is the same in every plan of the
campaign, whatever else is in the list. The places for samples and for variants are independent of each other.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.events.rows import quoted, time_ms
from zonemta_py.pipeline.plan.list import POSITION, PlainList
from zonemta_py.pipeline.plan.suppression import PLAIN, PLAIN_MAX, Suppression, address_or_reason
from zonemta_py.pipeline.spark.arrow import BLOCK, Blocks
from zonemta_py.smtp.address import folded
from zonemta_py.submit.recipients import BLANKS

REJECTED, DUPLICATE, SUPPRESSED, PLANNED = "rejected", "duplicate", "suppressed", "planned"
NOT_SAMPLED, OTHER_VARIANT, POSTPONED = "not_sampled", "other_variant", "postponed"
KINDS = (PLANNED, REJECTED, DUPLICATE, SUPPRESSED, NOT_SAMPLED, OTHER_VARIANT, POSTPONED)
BLOCK_ROWS = 200_000  # that are classified and packed together
EARLIER = "earlier in the list"
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PER_CENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?")
ROUNDING = 1e-9
CELL_MAX = 1000  # characters that are kept of a rejected cell
CHECKED = ("given", "address", "folded", "reason")
SEND_AT = StructField("send_at_ms", LongType())
_STRING = StringType()
FIELDS = StructField("fields", MapType(_STRING, _STRING))
NORMALISED = StructType(
    [StructField("position", LongType()), *(StructField(name, _STRING) for name in CHECKED)]
)


@dataclass(frozen=True, slots=True)
class Selection:
    """``sample``: a share of the recipients, at most 1. ``variant``: one of ``variants``, or None: all of them.

    ``variants``: names with their shares; what is left of 1 is in none.
    """

    campaign: str
    sample: float = 1.0
    variants: Sequence[tuple[str, float]] = ()
    variant: str | None = None
    caps: Mapping[str, int] | None = None  # recipients by provider; the others are postponed

    @property
    def sample_salt(self) -> str:
        """The text on which the place in the sample depends besides the address."""
        return f"sample\0{self.campaign}"

    @property
    def variant_salt(self) -> str:
        """The text on which the variant depends besides the address."""
        return f"variant\0{self.campaign}"

    def variant_ends(self) -> list[tuple[str, float]]:
        """Each variant with the place at which it ends; it begins at the end of the one before."""
        ends = accumulate(share for _, share in self.variants)
        return [(name, min(1.0, end)) for (name, _), end in zip(self.variants, ends, strict=True)]


def parse_share(text: str) -> float:
    """A share from ``5%`` or ``2.5``, in per cent. Raises ValueError with what is expected."""
    match = _PER_CENT.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 100:
        raise ValueError("a share in per cent, such as 5%")
    return float(match[1]) / 100


def parse_variants(text: str) -> tuple[tuple[str, float], ...]:
    """Variants from ``a=45,b=45,holdout=10``, in per cent. Raises ValueError with what is expected."""
    found = []
    for part in text.split(","):
        name, _, share = part.strip().partition("=")
        if not _NAME.fullmatch(name):
            raise ValueError("names with shares in per cent, such as a=45,b=45,holdout=10")
        found.append((name, parse_share(share)))
    if len({name for name, _ in found}) < len(found):
        raise ValueError("variants with different names")
    if sum(share for _, share in found) > 1 + ROUNDING:
        raise ValueError("variants with at most 100 % together")
    return tuple(found)


def arrange_rows(
    suppression: Suppression | None, selection: Selection, case_sensitive: bool
) -> Callable[[DataFrame], DataFrame]:
    """The rows of ``normalise_rows`` as the classification needs them: equal addresses together, in the order of the list.

    Adds ``digest`` (of the address, without regard to case unless ``case_sensitive``), ``suppressed`` (the reason, or null), and
    ``apart`` with ``apart_why`` (the kind of a row that ``selection`` leaves out, or null).
    """

    def transform(rows: DataFrame) -> DataFrame:
        folded = F.coalesce("folded", F.lower("address"))
        key = F.col("address") if case_sensitive else folded
        # Rejected rows have no address: each has a digest of its own, or one task would get them all.
        keyed = rows.select(
            "*", F.when(key.isNull(), F.col("position")).otherwise(F.xxhash64(key)).alias("digest")
        )
        entries = suppression.rows if suppression else None
        found = _suppressed(keyed.repartition("digest"), folded, entries)
        apart, why = _apart(selection, folded)
        return found.select("*", apart.alias("apart"), why.alias("apart_why")).sortWithinPartitions(
            "digest", "position"
        )

    return transform


def _suppressed(rows: DataFrame, folded: Column, entries: DataFrame | None) -> DataFrame:
    """Rows with ``suppressed``; the reason of an address takes precedence over that of its domain."""
    if entries is None:
        return rows.select("*", F.lit(None).cast("string").alias("suppressed"))
    columns = [F.col(name) for name in rows.columns]
    found = rows
    # The digest of an entry is that of its lower case.
    on_address = (F.xxhash64(folded) == F.col("by_address_digest")) & (
        folded == F.col("by_address_entry")
    )
    on_domain = F.substring_index("address", "@", -1) == F.col("by_domain_entry")
    has_at = F.contains("entry", F.lit("@"))
    for name, condition, part in (
        ("by_address", on_address, entries.where(has_at)),
        ("by_domain", on_domain, entries.where(~has_at)),
    ):
        named = part.select(*(F.col(each).alias(f"{name}_{each}") for each in part.columns))
        found = found.join(named, condition, "left")
    return found.select(
        *columns, F.coalesce("by_address_reason", "by_domain_reason").alias("suppressed")
    )


def _apart(selection: Selection, folded: Column) -> tuple[Column, Column]:
    """The kind of a row that ``selection`` leaves out, and why; both null for a row that it takes."""
    kind, why = F.lit(None).cast("string"), F.lit(None).cast("string")
    if selection.variant is not None:
        at = _place(selection.variant_salt, folded)
        other = F.coalesce(
            *(F.when(at < end, F.lit(name)) for name, end in selection.variant_ends()),
            F.lit("no variant"),
        )
        is_other = F.col("address").isNotNull() & (other != selection.variant)
        kind, why = F.when(is_other, OTHER_VARIANT), F.when(is_other, other)
    if selection.sample < 1:
        is_out = _place(selection.sample_salt, folded) >= selection.sample
        kind = F.when(is_out, NOT_SAMPLED).otherwise(kind)
        why = F.when(is_out, F.lit(f"not in the sample of {selection.sample:.4%}")).otherwise(why)
    return kind, why


def _place(salt: str, folded: Column) -> Column:
    """A number from 0 to 1 that depends on the address and ``salt`` only."""
    parts = 1 << 30
    return F.pmod(F.xxhash64(F.lit(salt), folded), F.lit(parts)) / parts


@dataclass(slots=True)
class _Seen:
    """The addresses of the last digest."""

    digest: int | None = None
    keys: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Classifier:
    """How rows are classified. ``entries``: ``entry`` and ``reason`` of what is suppressed besides what Spark has joined."""

    case_sensitive: bool = False
    entries: pa.Table | None = None

    def blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Blocks of the rows of ``arrange_rows``, with ``kind`` and ``why``."""
        seen = _Seen()
        reasons = _Reasons(self.entries) if self.entries is not None else None
        for block in blocks_of(batches):
            kind, why = self._kinds(block, seen, reasons)
            yield block.append_column("kind", kind).append_column("why", why)

    def _kinds(
        self, block: pa.Table, seen: _Seen, reasons: "_Reasons | None"
    ) -> tuple[pa.Array, pa.Array]:
        """The columns kind and why; ``seen`` is brought up to the end of the block."""
        address = _column(block, "address")
        folded = pc.coalesce(_column(block, "folded"), pc.ascii_lower(address))
        key = address if self.case_sensitive else folded
        suppressed = _column(block, "suppressed") if reasons is None else reasons.of(folded)
        reason, apart = _column(block, "reason"), _column(block, "apart")
        is_duplicate = pa.array(_duplicates(_column(block, "digest").to_numpy(), key, seen))
        cases = pc.make_struct(pc.is_valid(reason), is_duplicate, pc.is_valid(suppressed))
        kind = pc.case_when(
            cases, REJECTED, DUPLICATE, SUPPRESSED, pc.coalesce(apart, pa.scalar(PLANNED))
        )
        why = pc.case_when(cases, reason, EARLIER, suppressed, _column(block, "apart_why"))
        return kind, why


class _Reasons:
    """Finds the reason of an address or its domain."""

    def __init__(self, entries: pa.Table) -> None:
        self._entries, self._reasons = (
            entries.column(name).combine_chunks() for name in ("entry", "reason")
        )
        is_domain = pc.invert(pc.match_substring(self._entries, "@"))
        self._domains = self._entries.filter(is_domain)
        self._of_domains = self._reasons.filter(is_domain)

    def of(self, folded: pa.Array) -> pa.Array:
        """The reason of each address, or null; its own takes precedence over that of its domain."""
        by_address = self._reasons.take(pc.index_in(folded, self._entries, skip_nulls=True))
        if not len(self._domains):
            return by_address
        at_domain = pc.index_in(domains_of(folded), self._domains, skip_nulls=True)
        return pc.coalesce(by_address, self._of_domains.take(at_domain))


def domains_of(addresses: pa.StringArray) -> pa.StringArray:
    """The text behind the last ``@`` of each address; null for null."""
    parts = pc.split_pattern(addresses, "@", max_splits=1, reverse=True)
    return pc.list_element(parts, 1)


def blocks_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of BLOCK_ROWS or a little more, each column in one piece."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= BLOCK_ROWS:
            yield pa.Table.from_batches(waiting).combine_chunks()
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting).combine_chunks()


def _column(table: pa.Table, name: str) -> pa.Array:
    """A column of a table whose chunks were combined."""
    return table.column(name).chunk(0)


def _duplicates(digest: Numbers, key: pa.Array, seen: _Seen) -> Flags:
    """True for each row with a key that an earlier row with the same digest has; null is no key."""
    same = np.empty(len(digest), dtype=bool)
    same[0] = digest[0] == seen.digest
    np.equal(digest[1:], digest[:-1], out=same[1:])
    starts = np.flatnonzero(~same)
    found = np.zeros(len(digest), dtype=bool)
    at = np.flatnonzero(same)
    if len(at):
        repeats = pc.equal(key.take(pa.array(at)), key.take(pa.array(np.maximum(at - 1, 0))))
        found[at] = repeats.fill_null(False).to_numpy(zero_copy_only=False)
        # Different addresses can have one digest; and what is before the first row is only in ``seen``.
        runs = set(np.searchsorted(starts, at[~found[at]], side="right").tolist())
        bounds = [0, *starts.tolist(), len(digest)]  # run 0 continues the last block
        for run in {*runs, *([0] if same[0] else [])}:
            _mark_run(found, key, range(bounds[run], bounds[run + 1]), () if run else seen.keys)
    begin = int(starts[-1]) if len(starts) else 0
    last = {each for each in key[begin:].to_pylist() if each is not None}
    seen.keys = last if len(starts) else seen.keys | last
    seen.digest = int(digest[-1])
    return found


def _mark_run(found: Flags, key: pa.Array, rows: range, earlier: Collection[str]) -> None:
    """Mark the repeats among ``rows``, all of one digest, one by one."""
    keys = set(earlier)
    for row, each in zip(rows, key[rows.start : rows.stop].to_pylist(), strict=True):
        found[row] = each in keys
        if each is not None:
            keys.add(each)


# ---- The address of each row.


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
