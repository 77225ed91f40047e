"""Recommends settings for the zones of single providers from their statistics, as YAML with evidence; nothing is applied.

A limit is recommended only when replies of the provider mention one, a longer first delay only when it
greylists, more connections only when all of them were in use and no reply mentioned a limit.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Retry, Zone
from zonemta_py.core import clock
from zonemta_py.core.codec import to_json
from zonemta_py.core.text import one_line
from zonemta_py.pipeline.events.log import EventLog
from zonemta_py.pipeline.events.rows import (
    ATTEMPTS,
    named_provider,
    read_events,
    reply_kind,
    with_classes,
)
from zonemta_py.pipeline.spark.files import write_text
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress
from zonemta_py.smtp.reply_class import ReplyClass

REPLIES_MIN = 20  # fewer replies are not evidence
SHARE_MIN = 0.005  # of a provider's transactions
IN_USE_MIN = 0.9  # of the connections: then our own limit holds mail back, not the peer's
TEXT_MAX = 90
LIMITS = (
    ReplyClass.RATE_LIMITED.value,
    ReplyClass.CONNECTION_LIMITED.value,
    ReplyClass.TOO_MANY_RECIPIENTS.value,
)
DOMAINS_MAX = 50  # listed of one provider
MINUTE_MS = 60_000
FIRST_ATTEMPT = 1  # the one that greylisting refuses
PROVIDERS_MAX = 200  # the ones with most transactions


@dataclass(frozen=True, slots=True)
class ProviderStats:
    """Statistics of a provider, from the events. A minute is *clean* when no reply mentioned a limit.

    ``limited``: transactions whose reply mentioned a limit; ``limited_sessions``: a limit of sessions.
    ``limit_reply``: the most frequent of these replies, masked.
    ``clean_per_minute``, ``clean_sessions``: transactions and sessions, 90 % quantile of the clean minutes.
    ``limited_per_minute``: transactions, median of the other minutes. ``busiest_sessions``: maximum of all minutes.
    ``greylisted``: recipients whose first attempt was greylisted; ``greylist_through`` of them were delivered
    later, 90 % of those within ``greylist_s``.
    """

    provider: str
    domains: Sequence[str]
    zones: Sequence[str]
    transactions: int
    limited: int
    limited_sessions: int
    limit_reply: str
    clean_per_minute: float | None
    limited_per_minute: float | None
    clean_sessions: float | None
    busiest_sessions: float
    greylisted: int
    greylist_s: float | None
    greylist_through: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A setting of a zone, and the evidence for it."""

    key: str
    value: object
    evidence: str


@dataclass(frozen=True, slots=True)
class RecommendRequest:
    """``output``: the YAML file. ``config``: the configuration that was in force, or None."""

    log: EventLog
    output: str
    config: Config | None = None


def recommend(
    spark: SparkSession, request: RecommendRequest, progress: Progress
) -> dict[str, list[Recommendation]]:
    """Write the file; returns the recommendations for each provider. Raises LocalError."""
    progress("computing statistics of providers")
    with spark_errors(request.log.path):
        rows = read_events(spark, request.log).transform(provider_stats).limit(PROVIDERS_MAX).collect()
    names = [each.name for each in fields(ProviderStats)]
    providers = [ProviderStats(**{name: row[name] for name in names}) for row in rows]
    advice = [
        (stats, found)
        for stats in providers
        if (found := advise(stats, _zone_of(stats, request.config)))
    ]
    title = f"made by zonemta pipeline recommend from {request.log.path}, {clock.utc(clock.now_ms()):%Y-%m-%d %H:%M} UTC"
    text = as_yaml(advice, title)
    parse_config(text, Path(request.output))  # the relay must accept it
    write_text(spark, request.output, text)
    return {stats.provider: found for stats, found in advice}


def _zone_of(stats: ProviderStats, config: Config | None) -> Zone | None:
    """The settings that were in force, if all mail of the provider was in one zone."""
    if config is None or len(stats.zones) != 1:
        return None
    return config.zones.get(stats.zones[0])


# ---- The rules. Pure.


def advise(stats: ProviderStats, zone: Zone | None) -> list[Recommendation]:
    """Recommendations for a zone of this provider; ``zone``: the settings that were in force, if known."""
    found = [*_limits(stats), *_first_delay(stats)]
    if not found and zone is not None:
        found += _more_connections(stats, zone)
    return found


def _limits(stats: ProviderStats) -> Iterable[Recommendation]:
    if stats.limited < REPLIES_MIN or stats.limited < SHARE_MIN * stats.transactions:
        return
    reply = f"'{_short(stats.limit_reply)}': {_share_of(stats.limited, stats.transactions)}"
    if 2 * stats.limited_sessions >= stats.limited:
        if stats.clean_sessions is not None:
            yield Recommendation(
                "connections_per_domain",
                max(1, int(stats.clean_sessions)),
                f"{reply}; 90 % of the minutes without it had at most {stats.clean_sessions:.1f} sessions",
            )
        return
    if stats.clean_per_minute is not None:
        minutes = f"90 % of the minutes without it had at most {stats.clean_per_minute:,.0f}"
        others = stats.limited_per_minute
        yield Recommendation(
            "rate",
            f"{max(1, int(stats.clean_per_minute))}/m",
            f"{reply}; {minutes}" + (f", half of those with it {others:,.0f} or more" if others else ""),
        )


def _first_delay(stats: ProviderStats) -> Iterable[Recommendation]:
    """The first delay: enough for 90 % of the recipients, in whole minutes; later delays stay as they are."""
    if stats.greylist_s is None or stats.greylist_through < REPLIES_MIN:
        return
    minutes = max(1, -int(-stats.greylist_s // 60))
    later = [f"{int(delay_s)}s" for delay_s in Retry().delays if delay_s > 60 * minutes]
    yield Recommendation(
        "retry",
        {"delays": [f"{minutes}m", *later]},
        f"{stats.greylisted:,} recipients were greylisted; of the {stats.greylist_through:,} that were delivered "
        f"later, 90 % were within {stats.greylist_s:,.0f} s",
    )


def _more_connections(stats: ProviderStats, zone: Zone) -> Iterable[Recommendation]:
    limit = zone.connections_per_domain
    if stats.busiest_sessions >= IN_USE_MIN * limit and stats.limited == 0:
        yield Recommendation(
            "connections_per_domain",
            2 * limit,
            f"up to {stats.busiest_sessions:.1f} of {limit} sessions were in use at once, "
            f"and no reply to {stats.transactions:,} transactions mentioned a limit",
        )


def as_yaml(advice: Sequence[tuple[ProviderStats, Sequence[Recommendation]]], title: str) -> str:
    """Part of a configuration: a zone and its routes for each provider, the evidence above each setting."""
    lines = [
        f"# {title}",
        "# Nothing is applied automatically: read the evidence, then copy the settings that you want.",
    ]
    if not advice:
        return "\n".join([*lines, "# The events give no reason to change a setting.", ""])
    lines.append("zones:")
    for stats, found in advice:
        lines.append(f"  {zone_name(stats.provider)}:")
        for each in found:
            lines += [f"    # {each.evidence}", f"    {each.key}: {to_json(each.value).decode()}"]
    lines.append("routing:")
    for stats, _ in advice:
        route = '  - {{recipient_domain: "{}", zone: {}}}'
        lines += [route.format(domain, zone_name(stats.provider)) for domain in stats.domains]
    return "\n".join([*lines, ""])


def zone_name(provider: str) -> str:
    """A valid zone name for a provider."""
    return re.sub(r"[^a-z0-9_-]", "-", provider.lower())


def _share_of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} transactions ({100 * part / whole:.1f} %)"


def _short(text: str) -> str:
    """A reply as one printable line of at most TEXT_MAX characters, for a comment."""
    flat = one_line(" ".join(text.split()), "?")
    return flat if len(flat) <= TEXT_MAX else flat[: TEXT_MAX - 1] + "…"


# ---- Statistics of providers: their minutes, replies about limits, and greylisting.


def provider_stats(events: DataFrame) -> DataFrame:
    """The fields of ``ProviderStats`` for each provider."""
    attempts = _attempts(events)
    is_failure = F.col("event") != "delivered"
    classified = (
        attempts.where(is_failure).transform(with_classes).unionByName(attempts.where(~is_failure))
    )
    transactions = classified.transform(_transactions).transform(_by_minute)
    clean, limited = F.col("limited") == 0, F.col("limited") > 0
    by_provider = transactions.groupBy("provider").agg(
        F.sum("transactions").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        F.percentile(F.when(clean, F.col("transactions")), 0.9).alias("clean_per_minute"),
        F.percentile(F.when(limited, F.col("transactions")), 0.5).alias("limited_per_minute"),
        F.percentile(F.when(clean, F.col("sessions")), 0.9).alias("clean_sessions"),
        F.max("sessions").alias("busiest_sessions"),
        F.max_by("limit_reply", F.col("limited")).alias("limit_reply"),
    )
    names = attempts.groupBy("provider").agg(
        F.slice(F.array_sort(F.collect_set("domain")), 1, DOMAINS_MAX).alias("domains"),
        F.array_sort(F.collect_set("zone")).alias("zones"),
    )
    return (
        by_provider.join(names, "provider")
        .join(classified.transform(_greylisted), "provider", "left")
        .select(
            "provider", "domains", "zones", "transactions", "limited", "limited_sessions",
            F.coalesce("limit_reply", F.lit("")).alias("limit_reply"), "clean_per_minute", "limited_per_minute", "clean_sessions",
            "busiest_sessions", F.coalesce("greylisted", F.lit(0)).alias("greylisted"), "greylist_s",
            F.coalesce("greylist_through", F.lit(0)).alias("greylist_through"),
        )
        .orderBy(F.desc("transactions"), "provider")
    )  # fmt: skip


def _attempts(events: DataFrame) -> DataFrame:
    """One row for each attempt; a failure has the ``kind`` of its reply."""
    is_failure = F.col("event") != "delivered"
    return events.where(F.col("event").isin(*ATTEMPTS)).select(
        "event", "message", "recipient", "zone", "domain", named_provider().alias("provider"), "attempt",
        F.timestamp_millis("time_ms").alias("time"), "duration_ms", "phase", "code", "status", "reply",
        F.coalesce("class", F.lit("")).alias("class"), F.when(is_failure, reply_kind(F.col("reply"))).alias("kind"),
    )  # fmt: skip


def _transactions(attempts: DataFrame) -> DataFrame:
    """One row for each transaction: its recipients have the same attempt, time and duration."""
    limited = F.col("class").isin(*LIMITS)
    return attempts.groupBy(
        "provider", "message", "domain", "attempt", "time", F.col("duration_ms").alias("took_ms")
    ).agg(
        F.max(limited.cast("int")).alias("limited"),
        F.max((F.col("class") == ReplyClass.CONNECTION_LIMITED.value).cast("int")).alias(
            "limited_sessions"
        ),
        F.max(F.when(limited, F.col("kind"))).alias("limit_reply"),
    )


def _by_minute(transactions: DataFrame) -> DataFrame:
    """One row for each minute; ``sessions``: the mean number of busy sessions, by Little's law."""
    return transactions.groupBy("provider", F.date_trunc("minute", "time").alias("minute")).agg(
        F.count("*").alias("transactions"),
        F.sum("limited").alias("limited"),
        F.sum("limited_sessions").alias("limited_sessions"),
        (F.sum("took_ms") / MINUTE_MS).alias("sessions"),
        F.mode("limit_reply").alias("limit_reply"),
    )


def _greylisted(attempts: DataFrame) -> DataFrame:
    """Recipients whose first attempt was greylisted, and how long their delivery then took."""
    first = (F.col("class") == ReplyClass.GREYLISTED.value) & (F.col("attempt") == FIRST_ATTEMPT)
    of_recipient = attempts.groupBy("provider", "message", "recipient").agg(
        F.min(F.when(first, F.col("time"))).alias("refused_at"),
        F.min(F.when(F.col("event") == "delivered", F.col("time"))).alias("delivered_at"),
    )
    waited_s = F.unix_millis("delivered_at") / 1000 - F.unix_millis("refused_at") / 1000
    return (
        of_recipient.where("refused_at IS NOT NULL")
        .groupBy("provider")
        .agg(
            F.count("*").alias("greylisted"),
            F.count("delivered_at").alias("greylist_through"),
            F.percentile(waited_s, 0.9).alias("greylist_s"),
        )
    )
