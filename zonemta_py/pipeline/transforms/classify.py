"""Classifies the rows of a list: each is planned, or left out for a reason.

A row is rejected, else a duplicate, else suppressed, else outside the sample, of another variant, or planned; the counts add up to
the input. Spark brings equal addresses together, in the order of the list; Arrow then compares each row with the one before it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.selection import Selection
from zonemta_py.pipeline.spark.suppression import Suppression

REJECTED, DUPLICATE, SUPPRESSED, PLANNED = "rejected", "duplicate", "suppressed", "planned"
NOT_SAMPLED, OTHER_VARIANT, POSTPONED = "not_sampled", "other_variant", "postponed"
KINDS = (PLANNED, REJECTED, DUPLICATE, SUPPRESSED, NOT_SAMPLED, OTHER_VARIANT, POSTPONED)

BLOCK_ROWS = 200_000  # that are classified and packed together
EARLIER = "earlier in the list"

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def arrange_rows(
    suppression: Suppression | None, selection: Selection, case_sensitive: bool
) -> Callable[[DataFrame], DataFrame]:
    """The rows of ``normalise_rows`` as ``classify_blocks`` needs them: equal addresses together, in the order of the list.

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
    """What is behind the last ``@`` of each address; null for null."""
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
    """Which rows have a key that an earlier row with the same digest has; null is no key."""
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
