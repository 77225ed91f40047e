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

from zonemta_py.pipeline.keys import submission_key

GROUP_ROWS = 100_000  # one provider's recipients that one task packs
SHARED = ""  # the provider of envelopes for small domains
SMALL = 10  # fewer recipients of a provider than so many envelopes' worth are small
TURNS = 1 << 40


def packed(campaign: str, per_envelope: int, slots: int) -> Callable[[DataFrame], DataFrame]:
    """ENVELOPE from planned rows (``address``, ``zone``, ``provider``, ``fields``)."""

    def keys(addresses: pa.Array) -> pa.Array:
        return pa.array([submission_key(campaign, each) for each in addresses.to_pylist()])

    key_of = arrow_udf(keys, "string")  # type: ignore[call-overload]  # the hints say its kind

    def transform(rows: DataFrame) -> DataFrame:
        sizes = rows.groupBy("provider").agg(F.count("*").alias("size"))
        large = sizes.where(F.col("size") >= SMALL * per_envelope).select(
            F.col("provider").alias("large"), "size"
        )
        hashed = rows.join(F.broadcast(large), F.col("provider") == F.col("large"), "left").select(
            "address",
            "zone",
            "fields",
            F.coalesce("large", F.lit(SHARED)).alias("provider"),
            F.xxhash64("address").alias("digest"),
            F.pmod(
                F.xxhash64("address", F.lit(1)),
                F.coalesce(F.ceil(F.col("size") / GROUP_ROWS), F.lit(64)),
            ).alias("salt"),
        )
        group = ["zone", "provider", "salt"]
        ordered = Window.partitionBy(*group).orderBy("digest", "address")
        numbered = hashed.select(
            "*", F.floor((F.row_number().over(ordered) - 1) / per_envelope).alias("envelope")
        )
        envelopes = (
            numbered.groupBy(*group, "envelope")
            .agg(
                F.array_sort(F.collect_list(F.struct("address", "fields")), _by_address).alias(
                    "recipients"
                )
            )
            .select("zone", "provider", "recipients", key_of("recipients.address").alias("key"))
        )
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


def _by_address(one: Column, other: Column) -> Column:
    """The order of two recipients; a struct with a map in it has none of its own."""
    a, b = one["address"], other["address"]
    return F.when(a < b, -1).when(a > b, 1).otherwise(0)
