"""Packs recipients into envelopes, and orders the envelopes so that providers take turns.

The recipients of one provider share envelopes; those of small domains share envelopes with each other,
because otherwise each of a million domains would need a message of its own. ``turn`` spreads the envelopes
of each provider evenly over the campaign, so that none receives them in bursts.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from zonemta_py.pipeline.rules.submission_keys import submission_key

GROUP_ROWS = 100_000  # recipients of one provider that one task packs
SHARED = ""  # the provider of envelopes for small domains
SMALL_ENVELOPES = 10  # a provider whose recipients fill fewer envelopes is small
TURNS = 1 << 40  # ``turn`` is below this

Transform = Callable[[DataFrame], DataFrame]


def pack_envelopes(campaign: str, slots: int, per_envelope: int | None, sizes: DataFrame) -> Transform:
    """Rows of ``tables.ENVELOPE`` from planned rows (``address``, ``zone``, ``provider``, ``fields``).

    ``per_envelope``: recipients of an envelope; None: one, with its ``fields``, which are not needed otherwise.
    ``sizes``: the number of rows (``size``) of each ``provider``.
    """
    pack = _one_each(campaign) if per_envelope is None else _shared(campaign, per_envelope, sizes)

    def transform(rows: DataFrame) -> DataFrame:
        envelopes = rows.transform(pack)
        placed = envelopes.select(
            "*",
            F.pmod(F.xxhash64("key"), F.lit(slots)).cast("int").alias("slot"),
            (F.pmod(F.xxhash64("key", F.lit(2)), F.lit(1000)) / 1000).alias("jitter"),
        )
        of_provider = Window.partitionBy("slot", "provider")
        nth = F.row_number().over(of_provider.orderBy("key"))
        share = (nth - F.col("jitter")) / F.count("*").over(of_provider)
        return placed.select(
            "key", "slot", (share * TURNS).cast("long").alias("turn"), "zone", "provider", "recipients"
        )

    return transform


def _one_each(campaign: str) -> Transform:
    recipients = F.array(F.struct("address", "fields"))
    key = _key_of(campaign)(F.array("address"))
    return lambda rows: rows.select("zone", "provider", recipients.alias("recipients"), key.alias("key"))


def _shared(campaign: str, per_envelope: int, sizes: DataFrame) -> Transform:
    def transform(rows: DataFrame) -> DataFrame:
        large = sizes.where(F.col("size") >= SMALL_ENVELOPES * per_envelope).select(
            F.col("provider").alias("large"), "size"
        )
        groups = F.coalesce(F.ceil(F.col("size") / GROUP_ROWS), F.lit(64))
        salt = F.pmod(F.xxhash64("address", F.lit(1)), groups)
        grouped = rows.join(F.broadcast(large), F.col("provider") == F.col("large"), "left").select(
            "address",
            "zone",
            F.coalesce("large", F.lit(SHARED)).alias("provider"),
            F.xxhash64("address").alias("digest"),
            # Numbers sort faster than names; groups with the same number only get smaller envelopes.
            F.xxhash64("zone", F.coalesce("large", F.lit(SHARED)), salt).alias("group"),
        )
        ordered = Window.partitionBy("group").orderBy("digest", "address")
        number = F.floor((F.row_number().over(ordered) - 1) / per_envelope)
        envelopes = (
            grouped.select("address", "zone", "provider", "group", number.alias("envelope"))
            .groupBy("group", "envelope", "zone", "provider")
            .agg(F.sort_array(F.collect_list("address")).alias("addresses"))
        )
        no_fields = F.create_map().cast("map<string,string>")
        recipients = F.transform("addresses", lambda a: F.struct(a.alias("address"), no_fields.alias("fields")))  # fmt: skip
        key = _key_of(campaign)(F.col("addresses"))
        return envelopes.select("zone", "provider", recipients.alias("recipients"), key.alias("key"))

    return transform


def _key_of(campaign: str) -> Callable[[Column], Column]:
    def keys(addresses: pa.Array) -> pa.Array:
        return pa.array([submission_key(campaign, each) for each in addresses.to_pylist()])

    # Without a function type, because pyspark warns when one is given beside the annotations of ``keys``.
    udf: Callable[[Column], Column] = arrow_udf(keys, "string")  # type: ignore[call-overload]  # the stubs demand it
    return udf
