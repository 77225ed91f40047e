"""Rates and latencies of delivery from the events of attempts, and the compliance with warm-up schedules.

A *failure* is an attempt that ended deferred, bounced or expired.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules.provider import PROVIDERS
from zonemta_py.pipeline.transforms.attempt_sums import ATTEMPTS, quantiles_ms
from zonemta_py.pipeline.transforms.replies import mask_reply

QUANTILES = (0.5, 0.95, 0.99)
QUANTILE_NAMES = tuple(f"p{round(100 * share)}_ms" for share in QUANTILES)
ALLOWANCE = "day date, address string, provider string, allowed long"

Transform = Callable[[DataFrame], DataFrame]


def attempt_rows(campaigns: DataFrame | None) -> Transform:
    """One row for each attempt; a failure has the ``kind`` of its reply.

    ``campaigns`` maps ``message`` to ``campaign``; other messages have that of their X-Campaign.
    """

    def transform(events: DataFrame) -> DataFrame:
        rows = events.where(F.col("event").isin(*ATTEMPTS)).select(
            "event",
            "message",
            "recipient",
            "zone",
            "domain",
            provider("domain").alias("provider"),
            F.col("source_ip").alias("address"),
            F.timestamp_millis("time_ms").alias("time"),
            "attempt",
            (F.col("time_ms") - F.col("created_ms")).alias("age_ms"),
            "phase",
            "code",
            "status",
            "reply",
            # Masked here once, and not again for each table: it is five expressions over every reply.
            F.when(F.col("event") != "delivered", mask_reply(F.col("reply"))).alias("kind"),
            "duration_ms",
            F.coalesce("tenant", F.lit("")).alias("tenant"),  # null in events of earlier versions
            F.coalesce(F.from_json("tags", "array<string>"), F.array().cast("array<string>")).alias(
                "tags"
            ),
            F.coalesce("campaign", F.lit("")).alias("campaign"),
        )
        if campaigns is None:
            return rows
        planned = campaigns.withColumnRenamed("campaign", "planned")
        return rows.join(planned, "message", "left").select(
            *(name for name in rows.columns if name != "campaign"),
            F.coalesce("planned", "campaign").alias("campaign"),
        )

    return transform


def provider(domain: str) -> Column:
    """The provider of a domain (``rules.provider``)."""
    table = F.create_map(*(F.lit(text) for pair in PROVIDERS.items() for text in pair))
    return F.coalesce(F.try_element_at(table, F.col(domain)), F.col(domain))


def rates_of(sums: DataFrame) -> DataFrame:
    """For each value of each dimension, for each tag, and for ``all``: counts, rates, and quantiles of the time to delivery.

    ``sums``: rows of the part ``rates``, one for each dimension and value.
    """
    finals = F.col("delivered") + F.col("bounced") + F.col("expired")
    attempts = finals + F.col("deferred")
    quantiles = sums.select("dimension", "value", *ATTEMPTS, "ages", "age_counts").mapInArrow(
        _with_quantiles, f"dimension string, value string, {_longs(ATTEMPTS)}, {_longs(QUANTILE_NAMES)}"
    )
    return quantiles.select(
        "dimension",
        "value",
        *ATTEMPTS,
        attempts.alias("attempts"),
        _share(F.col("delivered"), finals).alias("delivery_rate"),
        _share(F.col("bounced") + F.col("expired"), finals).alias("bounce_rate"),
        _share(F.col("deferred"), attempts).alias("deferral_rate"),
        *QUANTILE_NAMES,
    )


def _longs(names: Sequence[str]) -> str:
    return ", ".join(f"{name} long" for name in names)


def _with_quantiles(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        columns = [rows.column(name).combine_chunks() for name in ("dimension", "value", *ATTEMPTS)]
        yield pa.RecordBatch.from_arrays(
            [*columns, *quantiles_ms(rows, QUANTILES)],
            names=["dimension", "value", *ATTEMPTS, *QUANTILE_NAMES],
        )


def _share(part: Column, whole: Column) -> Column:
    """``part`` / ``whole``, null where ``whole`` is 0."""
    return F.when(whole > 0, part / whole)


def with_time(name: str) -> Transform:
    """``at_ms`` as the column ``hour`` (a timestamp) or ``day`` (a date)."""
    time = F.timestamp_millis("at_ms")

    def transform(rows: DataFrame) -> DataFrame:
        others = [column for column in rows.columns if column != "at_ms"]
        return rows.select((F.to_date(time) if name == "day" else time).alias(name), *others)

    return transform


def warmup_compliance(allowances: DataFrame) -> Transform:
    """``day``, ``address``, ``provider`` (empty: all), ``allowed``, ``sent``, ``over`` and ``kept`` of each allowance.

    ``allowances`` has the columns ALLOWANCE; the rows are those of the table ``days``. Every attempt counts, because peers count them all.
    """

    def transform(days: DataFrame) -> DataFrame:
        sent_of_day = sum((F.col(name) for name in ATTEMPTS), F.lit(0))
        of_day = days.select("day", "address", "provider", sent_of_day.alias("sent"))
        per_provider = of_day.select("day", "address", "provider", "sent")
        together = of_day.groupBy("day", "address").agg(F.sum("sent").alias("sent")).select(
            "day", "address", F.lit("").alias("provider"), "sent"
        )  # fmt: skip
        sent = F.coalesce("sent", F.lit(0))
        return (
            allowances.join(per_provider.unionByName(together), ["day", "address", "provider"], "left")
            .select(
                "day", "address", "provider", "allowed", sent.alias("sent"),
                F.greatest(sent - F.col("allowed"), F.lit(0)).alias("over"),
                (sent <= F.col("allowed")).alias("kept"),
            )
        )  # fmt: skip

    return transform
