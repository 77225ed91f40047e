"""Hours in which a rate of a provider deviates from its own history, and the replies that explain it.

Robust statistics without training: the rate of an hour is compared with the median of the hours before it,
in units of their median absolute deviation times 1.4826 (the standard deviation, for a normal distribution), or
of the standard error of a rate of that number of attempts, whichever is larger.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from zonemta_py.pipeline.transforms.attempt_sums import ATTEMPTS
from zonemta_py.pipeline.transforms.replies import with_reasons, with_templates

MEASURES = {"deferral": ("deferred",), "bounce": ("bounced", "expired")}
MAD_TO_SIGMA = 1.4826
DEVIATION_MIN = 0.01  # for a rate that was nearly constant
TEMPLATES_SHOWN = 3  # with each hour

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class AnomalyThresholds:
    """An anomaly is an hour of at least ``attempts``, at least ``score`` deviations away from the median.

    The median is of the last ``history_max`` such hours before it, at least ``history``.
    """

    score: float = 4.0
    attempts: int = 50
    history: int = 24
    history_max: int = 168


def anomalies(thresholds: AnomalyThresholds, replies: DataFrame) -> Transform:
    """``provider``, ``hour``, ``measure``, ``rate``, ``usual``, ``score``, ``attempts``, ``replies`` of each anomaly.

    Of rows of the part ``provider_hours`` of the sums; ``replies``: those of the part ``replies``.
    """

    def transform(hours: DataFrame) -> DataFrame:
        found = hours.transform(hourly_rates(thresholds.attempts)).transform(with_scores(thresholds))
        unusual = found.where(F.abs("score") >= thresholds.score).persist()
        return unusual.join(
            replies.transform(_explanations(unusual)), ["provider", "hour", "measure"], "left"
        ).select(
            "provider", "hour", "measure", "rate", "usual", "score", "attempts", "replies"
        )  # fmt: skip

    return transform


def hourly_rates(attempts_min: int) -> Transform:
    """``provider``, ``hour``, ``measure``, ``attempts`` and ``rate`` of hours with enough attempts."""

    def transform(hours: DataFrame) -> DataFrame:
        attempts = sum((F.col(name) for name in ATTEMPTS), F.lit(0))
        measures = [
            F.struct(
                F.lit(name).alias("measure"),
                (sum((F.col(event) for event in events), F.lit(0)) / F.col("attempts")).alias("rate"),
            )
            for name, events in MEASURES.items()
        ]
        return (
            hours.withColumns({"attempts": attempts, "hour": F.timestamp_millis("at_ms")})
            .where(F.col("attempts") >= attempts_min)
            .select("provider", "hour", "attempts", F.inline(F.array(*measures)))
        )

    return transform


def with_scores(thresholds: AnomalyThresholds) -> Transform:
    """The rows of ``hourly_rates`` with enough history, with ``usual`` (its median) and ``score``."""

    def transform(rows: DataFrame) -> DataFrame:
        before = (
            Window.partitionBy("provider", "measure")
            .orderBy("hour")
            .rowsBetween(-thresholds.history_max, -1)
        )
        usual = _median(F.col("history"))
        return (
            rows.select("*", F.collect_list("rate").over(before).alias("history"))
            .where(F.size("history") >= thresholds.history)
            .select("*", usual.alias("usual"))
            .select("*", _median(F.transform("history", lambda x: F.abs(x - F.col("usual")))).alias("mad"))
            .select("*", F.sqrt(F.col("usual") * (1 - F.col("usual")) / F.col("attempts")).alias("chance"))
            .select(
                "provider", "hour", "measure", "attempts", "rate", "usual",
                ((F.col("rate") - F.col("usual")) / F.greatest(MAD_TO_SIGMA * F.col("mad"), "chance", F.lit(DEVIATION_MIN))).alias("score"),
            )
        )  # fmt: skip

    return transform


def _median(values: Column) -> Column:
    """The lower median of an array that is not empty."""
    return F.get(F.array_sort(values), F.floor((F.size(values) - 1) / 2).cast("int"))


def _explanations(unusual: DataFrame) -> Transform:
    """``replies`` of each unusual hour: its most frequent templates, an array of count, reason and template."""

    def transform(replies: DataFrame) -> DataFrame:
        measure = F.coalesce(
            *(F.when(F.col("event").isin(*events), F.lit(name)) for name, events in MEASURES.items())
        )
        counted = (
            replies.select(
                "provider", F.timestamp_millis("at_ms").alias("hour"), measure.alias("measure"), "code", "status", "kind",
                "count",
            )
            .join(F.broadcast(unusual.select("provider", "hour", "measure")), ["provider", "hour", "measure"], "left_semi")
            .groupBy("provider", "hour", "measure", "code", "status", "kind")
            .agg(F.sum("count").alias("count"))
            .transform(with_reasons())
            .transform(with_templates("count"))
        )  # fmt: skip
        together = counted.groupBy("provider", "hour", "measure", "reason", "template").agg(
            F.sum("count").alias("count")
        )
        most = Window.partitionBy("provider", "hour", "measure").orderBy(F.desc("count"), "template")
        return (
            together.select("*", F.row_number().over(most).alias("nth"))
            .where(F.col("nth") <= TEMPLATES_SHOWN)
            .groupBy("provider", "hour", "measure")
            .agg(
                F.array_sort(F.collect_list(F.struct("nth", "count", "reason", "template"))).alias(
                    "replies"
                )
            )
        )

    return transform
