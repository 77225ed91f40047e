"""Recipients into envelopes, and envelopes into an order in which providers take turns.

Recipients of one provider share envelopes; those of small domains share theirs with each other, or
each of a million domains would make a message of its own. ``turn`` spreads the envelopes of each
provider evenly over the whole campaign, so that none is hit in bursts.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from zonemta_py.pipeline.rules.keys import submission_key

GROUP_ROWS = 100_000  # one provider's recipients that one task packs
SHARED = ""  # the provider of envelopes for small domains
SMALL = 10  # fewer recipients of a provider than so many envelopes' worth are small
TURNS = 1 << 40

Transform = Callable[[DataFrame], DataFrame]


def packed(campaign: str, slots: int, per_envelope: int | None, sizes: DataFrame) -> Transform:
    """ENVELOPE from planned rows (``address``, ``zone``, ``provider``, perhaps ``fields``).

    ``per_envelope`` None: an envelope for each row, with its fields. ``sizes``: rows of each provider.
    """
    pack = _alone(campaign) if per_envelope is None else _together(campaign, per_envelope, sizes)

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


def _alone(campaign: str) -> Transform:
    recipients = F.array(F.struct("address", "fields"))
    key = _key_of(campaign)(F.array("address"))
    return lambda rows: rows.select("zone", "provider", recipients.alias("recipients"), key.alias("key"))


def _together(campaign: str, per_envelope: int, sizes: DataFrame) -> Transform:
    def transform(rows: DataFrame) -> DataFrame:
        large = sizes.where(F.col("size") >= SMALL * per_envelope).select(
            F.col("provider").alias("large"), "size"
        )
        groups = F.coalesce(F.ceil(F.col("size") / GROUP_ROWS), F.lit(64))
        salt = F.pmod(F.xxhash64("address", F.lit(1)), groups)
        grouped = rows.join(F.broadcast(large), F.col("provider") == F.col("large"), "left").select(
            "address",
            "zone",
            F.coalesce("large", F.lit(SHARED)).alias("provider"),
            F.xxhash64("address").alias("digest"),
            # Numbers sort faster than names; should two groups share one, each has smaller envelopes.
            F.xxhash64("zone", F.coalesce("large", F.lit(SHARED)), salt).alias("group"),
        )
        ordered = Window.partitionBy("group").orderBy("digest", "address")
        number = F.floor((F.row_number().over(ordered) - 1) / per_envelope)
        envelopes = (
            grouped.select("address", "zone", "provider", "group", number.alias("envelope"))
            .groupBy("group", "envelope", "zone", "provider")
            .agg(F.sort_array(F.collect_list("address")).alias("addresses"))
        )
        nothing = F.create_map().cast("map<string,string>")
        recipients = F.transform("addresses", lambda a: F.struct(a.alias("address"), nothing.alias("fields")))  # fmt: skip
        key = _key_of(campaign)(F.col("addresses"))
        return envelopes.select("zone", "provider", recipients.alias("recipients"), key.alias("key"))

    return transform


def _key_of(campaign: str) -> Callable[[Column], Column]:
    def keys(addresses: pa.Array) -> pa.Array:
        return pa.array([submission_key(campaign, each) for each in addresses.to_pylist()])

    # Its kind is told by the hints of ``keys``; named as well, as the stubs want it, pyspark warns.
    found: Callable[[Column], Column] = arrow_udf(keys, "string")  # type: ignore[call-overload]  # stubs
    return found
