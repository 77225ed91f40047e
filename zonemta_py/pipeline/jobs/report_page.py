"""The HTML page of a report, from its tables. Each table is collected by one query, limited to the rows that are shown."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from zonemta_py.pipeline.page.content import PageHeader, PageRows, busiest_providers, page_content
from zonemta_py.pipeline.page.page_tables import COMPLAINED, ROWS_MAX
from zonemta_py.pipeline.page.rendering import render
from zonemta_py.pipeline.transforms import rates

__all__ = ["PageHeader", "page"]

Rows = list[dict[str, Any]]

_TEMPLATE = ("template", "reason", "provider", "event", "code", "status")


def page(about: PageHeader, tables: Mapping[str, DataFrame]) -> str:
    """The complete file, from ``rates``, ``hours``, ``days``, ``replies``, ``anomalies``; ``warmup`` and ``complaints`` if there."""
    complaints = _complaints(tables["complaints"]) if "complaints" in tables else None
    rates_shown = _rates(tables["rates"], complaints or ())
    replies = _replies(tables["replies"])
    rows = PageRows(
        rates=rates_shown,
        hours=_by_time(tables["hours"], "hour"),
        days=_days(tables["days"], busiest_providers(rates_shown)),
        reasons=[row for row in replies if not row["by_template"]],
        templates=[row for row in replies if row["by_template"]],
        anomalies=_anomalies(tables["anomalies"]),
        warmup=_collected(tables["warmup"]) if "warmup" in tables else None,
        complaints=complaints,
    )
    return render(page_content(about, rows))


def _complaints(table: DataFrame) -> Rows:
    """The sum of all, and those of the providers and campaigns with most, the most first."""
    keys = [("all", F.lit("")), *((name, F.coalesce(name, F.lit(""))) for name in COMPLAINED)]
    by = F.array(
        *(F.struct(F.lit(name).alias("dimension"), value.alias("value")) for name, value in keys)
    )
    summed = (
        table.select("complaints", F.explode(by).alias("by"))
        .groupBy("by.dimension", "by.value")
        .agg(F.sum("complaints").alias("complaints"))
    )
    return _collected(
        summed.transform(_ranked("dimension", F.desc("complaints"), "value"))
        .where(F.col("rank") <= ROWS_MAX)
        .orderBy("dimension", "rank")
    )


def _rates(table: DataFrame, complaints: Sequence[Mapping[str, Any]]) -> Rows:
    """The row of all, the busiest of each dimension, and those with complaints: these are few and need ``delivered``."""
    is_shown = (F.col("rank") <= ROWS_MAX) & ((F.col("value") != "") | (F.col("dimension") == "all"))
    for dimension in COMPLAINED:
        values = [row["value"] for row in complaints if row["dimension"] == dimension]
        if values:
            is_shown |= (F.col("dimension") == dimension) & F.col("value").isin(values)
    # Mail without a value, such as a campaign, is ranked behind all others.
    is_empty = F.coalesce("value", F.lit("")) == ""
    ranked = _ranked("dimension", is_empty, F.desc("attempts"), "value")
    return _collected(table.transform(ranked).where(is_shown))


def _ranked(dimension: str, *order: Column | str) -> Callable[[DataFrame], DataFrame]:
    """With ``rank``: 1 for the first of each dimension in this order."""

    def transform(table: DataFrame) -> DataFrame:
        window = Window.partitionBy(dimension).orderBy(*order)
        return table.select("*", F.row_number().over(window).alias("rank"))

    return transform


def _days(table: DataFrame, providers: Sequence[str]) -> Rows:
    return _by_time(table.where(F.col("provider").isin(list(providers))), "day", "provider")


def _by_time(table: DataFrame, time: str, *keys: str) -> Rows:
    """The sums of each hour or day, with ``begins``.

    It leaves Spark as a number: a timestamp would become a datetime in the time zone of this machine.
    """
    seconds = F.unix_seconds(F.col(time).cast("timestamp"))
    summed = table.groupBy(seconds.alias("seconds"), *keys).agg(
        *(F.sum(name).alias(name) for name in rates.ATTEMPTS)
    )
    return [{**row, "begins": _utc(row["seconds"])} for row in _collected(summed)]


def _replies(table: DataFrame) -> Rows:
    """Sums by reason, and with ``by_template`` those of the most frequent templates; the most first."""
    count = F.sum("count").alias("count")
    by_template = table.groupBy(*_TEMPLATE).agg(count)
    most = by_template.orderBy(F.desc("count"), "template", "provider").limit(ROWS_MAX)
    by_reason = table.groupBy("reason", "event").agg(count)
    both = by_reason.withColumn("by_template", F.lit(False)).unionByName(
        most.withColumn("by_template", F.lit(True)), allowMissingColumns=True
    )
    return _collected(both.orderBy(F.desc("count"), "reason", "event", "template", "provider"))


def _anomalies(table: DataFrame) -> Rows:
    most = table.orderBy(F.desc(F.abs("score")), "hour").limit(ROWS_MAX)
    rows = _collected(most.withColumn("seconds", F.unix_seconds("hour")).drop("hour"))
    return [{**row, "hour": _utc(row["seconds"])} for row in rows]


def _collected(table: DataFrame) -> Rows:
    return [row.asDict(recursive=True) for row in table.collect()]


def _utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
