"""Packs the classified rows of a list into envelopes, in the order of sending, by Arrow and numpy.

The recipients of one provider share envelopes; those of small domains share envelopes with each other,
because otherwise each of a million domains would need a message of its own.

The key of an envelope depends on its scope and the recipients alone: a task or a job that runs twice uses the same key, and the relay
answers a repeat with the id of the first message (docs/pipeline.md). The scope is the id of the plan, or the name of the campaign.
``turn`` is a hash of the key: the envelopes of each provider are spread over the campaign, so that none receives them in bursts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from zonemta_py.pipeline.plan.rows import (
    FIELDS,
    PLANNED,
    POSTPONED,
    SEND_AT,
    Classifier,
    blocks_of,
    domains_of,
)
from zonemta_py.pipeline.spark.arrow import Blocks
from zonemta_py.pipeline.spark.tables import RECIPIENT
from zonemta_py.routing import Router

BATCH_ROWS = 10_000
SHARED = ""  # the provider of envelopes for small domains
SMALL_ENVELOPES = 10  # a provider that fills fewer envelopes of a block has none that is not full
TURNS = 1 << 40  # ``turn`` is below this
KEY_DIGITS = 32
_STRING = StringType()
PACKED = StructType(
    [
        *(StructField(name, _STRING) for name in ("kind", "zone", "provider")),
        StructField("recipients", ArrayType(RECIPIENT)),
        *(StructField(name, _STRING) for name in ("address", "reason")),
    ]
)
CLASSIFIED = StructType(
    [
        StructField("digest", LongType()),
        *(StructField(name, _STRING) for name in ("given", "address", "kind", "why", "provider")),
    ]
)
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Packing:
    """How recipients are packed.

    ``per_envelope``: recipients of an envelope; None: one, with its ``fields``. ``sender_domain``: for the routes.
    ``providers``: of domains; any other is its own.
    """

    router: Router
    sender_domain: str
    per_envelope: int | None
    providers: Mapping[str, str]

    def provider_and_zone(self, domain: str) -> tuple[str, str]:
        """Those of the recipients in ``domain``."""
        zone = self.router.route(domain, self.sender_domain, "", {})
        return self.providers.get(domain, domain), zone


@dataclass(slots=True)
class BlockPacker:
    """Packs blocks of rows; remembers provider and zone of each domain."""

    packing: Packing
    schema: pa.Schema
    _domains: dict[str, tuple[str, str]] = field(default_factory=dict)

    def pack(self, block: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of a block that was classified: first those that are left out, then the envelopes."""
        for table in reversed(self.tables(block)):
            yield from table.to_batches(max_chunksize=BATCH_ROWS)

    def tables(self, block: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The envelopes of a block that was classified, and its rows that are left out."""
        is_planned = pc.equal(block.column("kind"), PLANNED)
        left_out = block.filter(pc.invert(is_planned))
        given = pc.coalesce(left_out.column("given"), left_out.column("address"))
        rows = self._table(
            left_out.num_rows,
            kind=left_out.column("kind"),
            address=given,
            reason=left_out.column("why"),
            **{name: left_out.column(name) for name in _extra(block)},
        )
        planned = block.filter(is_planned).combine_chunks()
        return self._envelopes(planned) if planned.num_rows else self._table(0), rows

    def _envelopes(self, planned: pa.Table) -> pa.Table:
        addresses = planned.column("address").combine_chunks()
        domains = domains_of(addresses).dictionary_encode()
        pairs = [
            self._domains.get(domain) or self._note(domain) for domain in domains.dictionary.to_pylist()
        ]
        providers, zones = (pa.array([pair[part] for pair in pairs], pa.string()) for part in (0, 1))
        domain = domains.indices.to_numpy()
        names = _extra(planned)
        if self.packing.per_envelope is None:
            offsets = np.arange(len(addresses) + 1)
            rows, shared = offsets[:-1], np.zeros(len(addresses), dtype=bool)
        else:
            groups = _numbered(zip(providers.to_pylist(), zones.to_pylist(), strict=True))
            send_at = _send_at(planned) if "send_at_ms" in names else None
            rows, offsets, shared = pack_groups(groups[domain], self.packing.per_envelope, send_at)
        first = rows[offsets[:-1]]
        provider = pc.if_else(
            pa.array(shared), pa.scalar(SHARED), providers.take(pa.array(domain[first]))
        )
        members = self._recipients(planned, addresses, pa.array(rows))
        return self._table(
            len(first),
            kind=pa.array([PLANNED]).take(pa.array(np.zeros(len(first), dtype=np.int64))),
            zone=zones.take(pa.array(domain[first])),
            provider=provider,
            recipients=pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), members),
            **{name: planned.column(name).take(pa.array(first)) for name in names if name != "fields"},
        )

    def _recipients(
        self, planned: pa.Table, addresses: pa.StringArray, rows: pa.Array
    ) -> pa.StructArray:
        """``tables.RECIPIENT`` of ``rows``; without merge fields ``fields`` is null."""
        kind = self.schema.field("recipients").type.value_type
        if "fields" in planned.column_names:
            fields = planned.column("fields").combine_chunks().take(rows)
        else:
            fields = pa.nulls(len(rows), kind.field("fields").type)
        return pa.StructArray.from_arrays(
            [addresses.take(rows), fields], fields=[kind.field(n) for n in range(kind.num_fields)]
        )

    def _table(self, rows: int, **columns: pa.Array) -> pa.Table:
        """``columns`` as a table of the schema; what is not given is null."""
        arrays = [
            columns[each.name] if each.name in columns else pa.nulls(rows, each.type)
            for each in self.schema
        ]
        return pa.table(arrays, schema=self.schema)

    def _note(self, domain: str) -> tuple[str, str]:
        found = self._domains[domain] = self.packing.provider_and_zone(domain)
        return found


def _extra(rows: pa.Table) -> list[str]:
    return [each.name for each in (FIELDS, SEND_AT) if each.name in rows.column_names]


def _numbered(pairs: Iterable[tuple[str, str]]) -> Numbers:
    """For each pair of provider and zone the number of the zone << 32, plus that of the provider."""
    providers: dict[str, int] = {}
    zones: dict[str, int] = {}
    numbers = [
        (zones.setdefault(zone, len(zones)) << 32) + providers.setdefault(provider, len(providers))
        for provider, zone in pairs
    ]
    return np.array(numbers, dtype=np.int64)


def _send_at(planned: pa.Table) -> Numbers:
    """The minute in which each recipient's message is sent; recipients of different minutes share none."""
    times_ms = planned.column("send_at_ms").combine_chunks().fill_null(0)
    minutes: Numbers = times_ms.to_numpy(zero_copy_only=False) // 60_000
    return minutes


def pack_groups(
    groups: Numbers, per_envelope: int, send_at: Numbers | None = None
) -> tuple[Numbers, Numbers, Flags]:
    """All rows in the order of the envelopes, the places where envelopes begin (and the end), and flags of the envelopes for several
    providers.

    ``groups``: of each row, as ``_numbered`` says. Rows of different zones, or of different values of ``send_at``, share none.
    """
    together = groups >> 32
    if send_at is not None:
        _, minutes = np.unique(send_at, return_inverse=True)
        together = together * len(minutes) + minutes
    by_provider = (together << 32) + (groups & 0xFFFFFFFF)
    order = np.argsort(by_provider, kind="stable")
    rank, counts = _ranks(by_provider[order])
    full = counts // per_envelope
    own = np.where(full >= SMALL_ENVELOPES, counts, full * per_envelope)
    is_own = rank < own
    rest = order[~is_own]
    own_begins = np.flatnonzero(rank[is_own] % per_envelope == 0)
    rest_begins = np.flatnonzero(_ranks(together[rest])[0] % per_envelope == 0)
    rows = np.concatenate([order[is_own], rest])
    offsets = np.concatenate([own_begins, rest_begins + len(rows) - len(rest), [len(rows)]])
    return rows, offsets, np.arange(len(offsets) - 1) >= len(own_begins)


def _ranks(values: Numbers) -> tuple[Numbers, Numbers]:
    """Of each of the sorted ``values``: how many equal ones are before it, and how many there are."""
    if not len(values):
        return values, values
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    counts = np.diff(np.append(begins, len(values)))
    return np.arange(len(values)) - np.repeat(begins, counts), np.repeat(counts, counts)


def packed_schema(names: Collection[str]) -> StructType:
    """PACKED, with FIELDS and SEND_AT if they are among ``names``."""
    return StructType([*PACKED, *(each for each in (FIELDS, SEND_AT) if each.name in names)])


def pack_rows(
    classifier: Classifier,
    packing: Packing,
    caps: Mapping[str, int] | None = None,
    blocks: Blocks | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Rows of PACKED, with FIELDS and SEND_AT where they are in the rows of ``arrange_rows``.

    A planned row has the ``recipients`` of an envelope; any other row the ``address`` as it is in the list, and the ``reason``.
    ``caps``: the most recipients of a provider; the others, by their digest, are postponed. ``blocks``: what has written the rows.
    """

    def transform(rows: DataFrame) -> DataFrame:
        names = blocks.columns if blocks else rows.columns
        extra = [each for each in (FIELDS, SEND_AT) if each.name in names]
        schema = packed_schema(names)
        read = blocks.read if blocks else iter
        if not caps:
            packed = partial(_classified_and_packed, classifier, packing, schema)
            return rows.mapInArrow(lambda each: packed(read(each)), schema)
        classified = StructType([*CLASSIFIED, *extra])
        marked = partial(_classified, classifier, packing.providers, classified)
        return (
            rows.mapInArrow(lambda each: marked(read(each)), classified)
            .transform(_postpone(caps))
            .mapInArrow(partial(_packed, packing, schema), schema)
        )

    return transform


def _postpone(caps: Mapping[str, int]) -> Callable[[DataFrame], DataFrame]:
    """Planned rows over the cap of their provider become postponed ones."""

    def transform(rows: DataFrame) -> DataFrame:
        is_capped = (F.col("kind") == PLANNED) & F.col("provider").isin(*caps)
        # All rows without a cap are spread by their digest: as one group, one task would get them.
        group = [F.when(is_capped, F.col("provider")), F.when(~is_capped, F.col("digest"))]
        nth = F.row_number().over(Window.partitionBy(*group).orderBy("digest", "address"))
        cap = F.create_map(*(F.lit(part) for pair in caps.items() for part in pair))[F.col("provider")]
        is_over = is_capped & (F.col("nth") > cap)
        return (
            rows.select("*", nth.alias("nth"))
            .withColumns(
                {
                    "kind": F.when(is_over, POSTPONED).otherwise(F.col("kind")),
                    "why": F.when(
                        is_over,
                        F.concat(F.lit("over the cap of "), "provider", F.lit(": "), cap.cast("string")),
                    ).otherwise(F.col("why")),
                }
            )
            .drop("nth")
        )

    return transform


def _classified_and_packed(
    classifier: Classifier, packing: Packing, schema: StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    packer = BlockPacker(packing, to_arrow_schema(schema))
    for block in classifier.blocks(batches):
        yield from packer.pack(block)


def _classified(
    classifier: Classifier,
    providers: Mapping[str, str],
    schema: StructType,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for block in classifier.blocks(batches):
        domains = domains_of(block.column("address").combine_chunks()).dictionary_encode()
        found = [providers.get(domain, domain) for domain in domains.dictionary.to_pylist()]
        names = pa.array(found, pa.string())
        named = block.append_column("provider", names.take(domains.indices))
        yield from named.select(schema.names).to_batches(max_chunksize=BATCH_ROWS)


def _packed(
    packing: Packing, schema: StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    packer = BlockPacker(packing, to_arrow_schema(schema))
    for block in blocks_of(batches):
        yield from packer.pack(block)


def with_keys(scope: str, slots: int) -> Callable[[DataFrame], DataFrame]:
    """Rows of ``tables.ENVELOPE`` from the planned rows of ``pack_rows``. ``scope``: of the keys. ``slots``: parts that are sent in parallel."""

    def transform(packed: DataFrame) -> DataFrame:
        send_at = F.col("send_at_ms") if "send_at_ms" in packed.columns else F.lit(None).cast("long")
        key = key_of(scope, F.sort_array("recipients.address"))
        return packed.select("*", key.alias("key")).select(
            "key",
            F.pmod(F.xxhash64("key"), F.lit(slots)).cast("int").alias("slot"),
            F.pmod(F.xxhash64("key", F.lit(2)), F.lit(TURNS)).alias("turn"),
            "zone",
            "provider",
            "recipients",
            send_at.alias("send_at_ms"),
        )

    return transform


def key_of(scope: str, addresses: Column) -> Column:
    """``submission_key`` as a column, of sorted addresses."""
    text = F.concat_ws("\0", F.lit(scope), addresses)
    return F.substring(F.sha2(text, 256), 1, KEY_DIGITS)


def submission_key(scope: str, addresses: Iterable[str]) -> str:
    """The key of one envelope: KEY_DIGITS hex digits. The order of ``addresses`` does not matter."""
    text = "\0".join([scope, *sorted(addresses)])
    return sha256(text.encode()).hexdigest()[:KEY_DIGITS]
