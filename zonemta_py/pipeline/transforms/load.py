"""What a simulation is made of: a load (planned, or as it was accepted), and peers as they answered."""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.simulation import ATTEMPTS_TOLD, Peer
from zonemta_py.pipeline.transforms.pack import TURNS
from zonemta_py.pipeline.transforms.rates import ATTEMPTS

LOAD = ("zone", "arrival_ms", "destination", "recipients")
TIMES = 40  # quantiles of a transaction's time
PEERS_MAX = 2000  # destinations that are told apart; all others are alike
ACCURACY = 10_000

Transform = Callable[[DataFrame], DataFrame]


def planned_load(recipients: int, per_s: float | None) -> Transform:
    """LOAD from a plan's envelopes, submitted at ``per_s`` recipients a second; None: all at once."""
    whole_ms = 1000 * recipients / per_s if per_s else 0.0

    def transform(envelopes: DataFrame) -> DataFrame:
        each = envelopes.select("key", "zone", "turn", F.explode("recipients.address").alias("address"))
        return (
            each.groupBy("key", "zone", "turn", _domain("address").alias("destination"))
            .agg(F.count("*").alias("recipients"))
            .select(
                "zone",
                (F.greatest("turn", F.lit(0)) / TURNS * whole_ms).cast("long").alias("arrival_ms"),
                "destination",
                F.col("recipients").cast("int").alias("recipients"),
            )
        )

    return transform


def recorded_load(events: DataFrame) -> DataFrame:
    """LOAD from ``accepted`` events, at the times at which they were."""
    recipients = F.from_json("recipients", "array<struct<recipient:string,zone:string>>")
    each = events.where(F.col("event") == "accepted").select("message", "time_ms", F.inline(recipients))
    return (
        each.groupBy("message", "time_ms", "zone", _domain("recipient").alias("destination"))
        .agg(F.count("*").alias("recipients"))
        .select("zone", F.col("time_ms").alias("arrival_ms"), "destination", F.col("recipients").cast("int").alias("recipients"))
    )  # fmt: skip


def _domain(address: str) -> Column:
    return F.substring_index(address, "@", -1)


def answers(events: DataFrame) -> DataFrame:
    """How each domain, and all together (``destination`` null), answered: times, and shares by attempt."""
    attempts = events.where(F.col("event").isin(*ATTEMPTS)).select(
        "domain", "event", "duration_ms", F.least("attempt", F.lit(ATTEMPTS_TOLD)).alias("nth")
    )
    middles = [(place + 0.5) / TIMES for place in range(TIMES)]
    counts = [
        count
        for nth in range(1, ATTEMPTS_TOLD + 1)
        for count in (
            F.count_if(F.col("nth") == nth).alias(f"made_{nth}"),
            F.count_if((F.col("nth") == nth) & (F.col("event") == "deferred")).alias(f"deferred_{nth}"),
            F.count_if((F.col("nth") == nth) & (F.col("event") == "bounced")).alias(f"bounced_{nth}"),
        )
    ]
    return (
        attempts.rollup("domain")
        .agg(
            F.grouping("domain").alias("together"),
            F.count("*").alias("attempts"),
            F.percentile_approx("duration_ms", middles, ACCURACY).alias("times_ms"),
            *counts,
        )
        .orderBy(F.desc("together"), F.desc("attempts"), "domain")
        .limit(PEERS_MAX + 1)
    )


def peer_of(row: Mapping[str, object]) -> Peer:
    """A peer from a row of ``answers``; an attempt that nobody came to is like the one before it."""
    deferred: list[float] = []
    bounced: list[float] = []
    for nth in range(1, ATTEMPTS_TOLD + 1):
        made = int(str(row[f"made_{nth}"]))
        for shares, name in ((deferred, "deferred"), (bounced, "bounced")):
            before = shares[-1] if shares else 0.0
            shares.append(int(str(row[f"{name}_{nth}"])) / made if made else before)
    times = row["times_ms"]
    assert isinstance(times, list)
    return Peer([ms / 1000 for ms in times], deferred, bounced)
