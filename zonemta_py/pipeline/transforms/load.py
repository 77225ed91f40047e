"""The input of a simulation: the load, from a plan or from events, and how peers answered.

A load has the columns ``zone``, ``arrival_ms``, ``destination`` and ``recipients``.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.prediction import ATTEMPTS_MAX, PeerModel
from zonemta_py.pipeline.transforms.pack import TURNS
from zonemta_py.pipeline.transforms.recorded_replies import is_of_sender
from zonemta_py.pipeline.transforms.sums import ATTEMPTS

TIMES = 40  # quantiles of the time of a transaction
PEERS_MAX = 2000  # destinations with a model of their own
ACCURACY = 10_000  # of quantiles: an error of 1/ACCURACY of the rank

Transform = Callable[[DataFrame], DataFrame]


def planned_load(recipients: int, per_s: float | None) -> Transform:
    """The load from a plan's envelopes, submitted at ``per_s`` recipients per second; None: all at once."""
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
    """The load from ``accepted`` events, at their times."""
    recipients = F.from_json("recipients", "array<struct<recipient:string,zone:string>>")
    each = events.where(F.col("event") == "accepted").select("message", "time_ms", F.inline(recipients))
    return (
        each.groupBy("message", "time_ms", "zone", _domain("recipient").alias("destination"))
        .agg(F.count("*").alias("recipients"))
        .select("zone", F.col("time_ms").alias("arrival_ms"), "destination", F.col("recipients").cast("int").alias("recipients"))
    )  # fmt: skip


def _domain(address: str) -> Column:
    return F.substring_index(address, "@", -1)


def peer_answers(events: DataFrame) -> DataFrame:
    """How each domain, and first all together (``domain`` null), answered: times, and counts by attempt.

    Attempts whose reply spoke of the sender are not in the counts: ``recorded_replies`` has those.
    """
    nth = F.when(~is_of_sender(), F.least("attempt", F.lit(ATTEMPTS_MAX)))
    attempts = events.where(F.col("event").isin(*ATTEMPTS)).select(
        "domain", "event", "duration_ms", nth.alias("nth")
    )
    ranks = [(n + 0.5) / TIMES for n in range(TIMES)]
    counts = [
        count
        for nth in range(1, ATTEMPTS_MAX + 1)
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
            F.percentile_approx("duration_ms", ranks, ACCURACY).alias("times_ms"),
            *counts,
        )
        .orderBy(F.desc("together"), F.desc("attempts"), "domain")
        .limit(PEERS_MAX + 1)
    )


def peer_model(row: Mapping[str, object]) -> PeerModel:
    """The model from a row of ``peer_answers``; an attempt without data has the shares of the one before it."""
    deferred: list[float] = []
    bounced: list[float] = []
    for nth in range(1, ATTEMPTS_MAX + 1):
        made = int(str(row[f"made_{nth}"]))
        for shares, name in ((deferred, "deferred"), (bounced, "bounced")):
            before = shares[-1] if shares else 0.0
            shares.append(int(str(row[f"{name}_{nth}"])) / made if made else before)
    times = row["times_ms"]
    assert isinstance(times, list)
    return PeerModel([ms / 1000 for ms in times], deferred, bounced)
