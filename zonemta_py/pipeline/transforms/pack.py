"""Packs recipients into envelopes, and orders the envelopes so that providers take turns.

The recipients of one provider share envelopes; those of small domains share envelopes with each other,
because otherwise each of a million domains would need a message of its own. ``turn`` is a hash of the key: the envelopes of
each provider are spread over the campaign, so that none receives them in bursts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.submission_keys import KEY_DIGITS

GROUP_ROWS = 50_000  # recipients of one provider that one task packs
SHARED = ""  # the provider of envelopes for small domains
SMALL_ENVELOPES = 10  # a provider whose recipients fill fewer envelopes is small
TURNS = 1 << 40  # ``turn`` is below this

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Packing:
    """How recipients are packed.

    ``scope``: of the submission keys. ``slots``: parts that are sent in parallel. ``per_envelope``: recipients of an
    envelope; None: one, with its ``fields``.
    """

    scope: str
    slots: int
    per_envelope: int | None

    @property
    def small_max(self) -> int:
        """A provider with fewer recipients is small."""
        return SMALL_ENVELOPES * (self.per_envelope or 1)


def pack_envelopes(packing: Packing, sizes: DataFrame, small_rows: int) -> Transform:
    """Rows of ``tables.ENVELOPE`` from planned rows (``address``, ``zone``, ``provider``, and ``fields`` if any).

    ``sizes``: the number of rows (``size``) of each ``provider``; ``small_rows``: their sum for small providers.
    """
    if packing.per_envelope is None:
        pack: Transform = _one_each
    else:
        pack = _shared(packing.per_envelope, sizes.where(F.col("size") >= packing.small_max), small_rows)

    def transform(rows: DataFrame) -> DataFrame:
        key = _key_of(packing.scope, F.array_sort("recipients.address"))
        keyed = rows.transform(pack).select("*", key.alias("key"))
        return keyed.select(
            "key",
            F.pmod(F.xxhash64("key"), F.lit(packing.slots)).cast("int").alias("slot"),
            F.pmod(F.xxhash64("key", F.lit(2)), F.lit(TURNS)).alias("turn"),
            "zone",
            "provider",
            "recipients",
        )

    return transform


def _one_each(rows: DataFrame) -> DataFrame:
    fields = F.col("fields") if "fields" in rows.columns else _no_fields()
    recipients = F.array(F.struct("address", fields.alias("fields")))
    return rows.select("zone", "provider", recipients.alias("recipients"))


def _shared(per_envelope: int, large: DataFrame, small_rows: int) -> Transform:
    def transform(rows: DataFrame) -> DataFrame:
        named = F.broadcast(large.select(F.col("provider").alias("large"), "size"))
        groups = F.ceil(F.coalesce("size", F.lit(max(1, small_rows))) / GROUP_ROWS)
        grouped = rows.join(named, F.col("provider") == F.col("large"), "left").select(
            "address",
            "zone",
            F.coalesce("large", F.lit(SHARED)).alias("provider"),
            F.pmod(F.xxhash64("address"), groups).alias("group"),
        )
        collected = grouped.groupBy("zone", "provider", "group").agg(
            F.sort_array(F.collect_list("address")).alias("addresses")
        )
        starts = F.sequence(F.lit(1), F.size("addresses"), F.lit(per_envelope))
        parts = F.transform(starts, lambda start: F.slice("addresses", start, per_envelope))
        envelopes = collected.select("zone", "provider", F.explode(parts).alias("addresses"))
        recipients = F.transform(
            "addresses", lambda a: F.struct(a.alias("address"), _no_fields().alias("fields"))
        )
        return envelopes.select("zone", "provider", recipients.alias("recipients"))

    return transform


def _no_fields() -> Column:
    return F.create_map().cast("map<string,string>")


def _key_of(scope: str, addresses: Column) -> Column:
    """``submission_key`` as a column."""
    text = F.concat_ws("\0", F.lit(scope), addresses)
    return F.substring(F.sha2(text, 256), 1, KEY_DIGITS)
