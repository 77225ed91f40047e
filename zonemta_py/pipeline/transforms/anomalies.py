"""Hours in which a provider's rates leave their own history, and the replies that explain them.

Robust statistics, nothing to train: an hour is compared with the median of the hours before it, in
units of their median absolute deviation (1.4826 of it is a standard deviation of a normal
distribution), and never finer than what chance does with so few attempts.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from zonemta_py.pipeline.transforms.replies import explained, with_templates

MEASURES = {"deferral": ("deferred",), "bounce": ("bounced", "expired")}
NORMAL = 1.4826
SIGMA_LEAST = 0.01  # a rate that never moved is not left by one percent
EXPLAINED_BY = 3  # templates told with each hour

Transform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What counts: hours of ``attempts`` or more, after ``history`` such hours, ``score`` deviations away.

    At most ``history_max`` hours are looked back.
    """

    score: float = 4.0
    attempts: int = 50
    history: int = 24
    history_max: int = 168


def anomalies(sensitivity: Sensitivity) -> Transform:
    """``provider``, ``hour``, ``measure``, ``rate``, ``usual``, ``score``, ``attempts`` and ``replies``."""

    def transform(attempts: DataFrame) -> DataFrame:
        found = attempts.transform(hourly(sensitivity.attempts)).transform(scored(sensitivity))
        unusual = found.where(F.abs("score") >= sensitivity.score)
        return unusual.join(
            attempts.transform(_explanations(unusual)), ["provider", "hour", "measure"], "left"
        ).select(
            "provider", "hour", "measure", "rate", "usual", "score", "attempts", "replies"
        )  # fmt: skip

    return transform


def hourly(attempts_least: int) -> Transform:
    """``provider``, ``hour``, ``measure``, ``attempts`` and ``rate`` of hours with enough attempts."""

    def transform(rows: DataFrame) -> DataFrame:
        measures = [
            F.struct(
                F.lit(name).alias("measure"),
                (F.count_if(F.col("event").isin(*events)) / F.count("*")).alias("rate"),
            )
            for name, events in MEASURES.items()
        ]
        return (
            rows.groupBy("provider", F.date_trunc("hour", "time").alias("hour"))
            .agg(F.count("*").alias("attempts"), F.array(*measures).alias("measures"))
            .where(F.col("attempts") >= attempts_least)
            .select("provider", "hour", "attempts", F.inline("measures"))
        )

    return transform


def scored(sensitivity: Sensitivity) -> Transform:
    """Rows of ``hourly`` that have a history, with ``usual`` (its median) and ``score``."""

    def transform(rows: DataFrame) -> DataFrame:
        before = (
            Window.partitionBy("provider", "measure")
            .orderBy("hour")
            .rowsBetween(-sensitivity.history_max, -1)
        )
        usual = _median(F.col("history"))
        return (
            rows.select("*", F.collect_list("rate").over(before).alias("history"))
            .where(F.size("history") >= sensitivity.history)
            .select("*", usual.alias("usual"))
            .select("*", _median(F.transform("history", lambda x: F.abs(x - F.col("usual")))).alias("mad"))
            .select("*", F.sqrt(F.col("usual") * (1 - F.col("usual")) / F.col("attempts")).alias("chance"))
            .select(
                "provider", "hour", "measure", "attempts", "rate", "usual",
                ((F.col("rate") - F.col("usual")) / F.greatest(NORMAL * F.col("mad"), "chance", F.lit(SIGMA_LEAST))).alias("score"),
            )
        )  # fmt: skip

    return transform


def _median(values: Column) -> Column:
    """The lower median of an array that is not empty."""
    return F.get(F.array_sort(values), F.floor((F.size(values) - 1) / 2).cast("int"))


def _explanations(unusual: DataFrame) -> Transform:
    """For each unusual hour its most frequent templates: ``replies``, an array of count, reason and template."""

    def transform(attempts: DataFrame) -> DataFrame:
        measure = F.coalesce(
            *(F.when(F.col("event").isin(*events), F.lit(name)) for name, events in MEASURES.items())
        )
        counted = (
            attempts.where(F.col("event") != "delivered")
            .select(
                "provider", F.date_trunc("hour", "time").alias("hour"), measure.alias("measure"), "code", "status",
                "kind",
            )
            .join(unusual.select("provider", "hour", "measure"), ["provider", "hour", "measure"], "left_semi")
            .groupBy("provider", "hour", "measure", "code", "status", "kind")
            .agg(F.count("*").alias("count"))
            .transform(explained())
            .transform(with_templates("count"))
        )  # fmt: skip
        together = counted.groupBy("provider", "hour", "measure", "reason", "template").agg(
            F.sum("count").alias("count")
        )
        most = Window.partitionBy("provider", "hour", "measure").orderBy(F.desc("count"), "template")
        return (
            together.select("*", F.row_number().over(most).alias("nth"))
            .where(F.col("nth") <= EXPLAINED_BY)
            .groupBy("provider", "hour", "measure")
            .agg(
                F.array_sort(F.collect_list(F.struct("nth", "count", "reason", "template"))).alias(
                    "replies"
                )
            )
        )

    return transform
