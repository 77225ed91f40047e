"""The tables of a report from the sums of attempts, and the rows of them that its page shows, by Arrow: they are small compared with the events."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.pipeline.events.replies import templates_of
from zonemta_py.pipeline.events.rows import ATTEMPTS, DAY_MS, classes_of
from zonemta_py.pipeline.report.attempts import quantiles_ms
from zonemta_py.pipeline.report.page import (
    COMPLAINED,
    ROWS_MAX,
    PageRows,
    busiest_providers,
)

QUANTILES = (0.5, 0.95, 0.99)
QUANTILE_NAMES = tuple(f"p{round(100 * share)}_ms" for share in QUANTILES)
REPLY_KEYS = ("provider", "event", "phase", "code", "status", "kind")
WARMUP = pa.schema(
    [
        ("day", pa.date32()), ("address", pa.string()), ("provider", pa.string()), ("allowed", pa.int64()), ("sent", pa.int64()),
        ("over", pa.int64()), ("kept", pa.bool_()),
    ]
)  # fmt: skip
_TEMPLATE = ("template", "reason", "provider", "event", "code", "status")
Rows = list[dict[str, Any]]


def rates_table(sums: pa.Table) -> pa.Table:
    """For each value of each dimension, for each tag, and for ``all``: counts, rates, and quantiles of the time to delivery.

    ``sums``: rows of the part ``rates``, one for each dimension and value.
    """
    rows = sums.sort_by([("dimension", "ascending"), ("value", "ascending")])
    delivered, deferred, bounced, expired = (rows.column(name) for name in ATTEMPTS)
    failed = pc.add(bounced, expired)
    finals = pc.add(delivered, failed)
    attempts = pc.add(finals, deferred)
    columns = {name: rows.column(name) for name in ("dimension", "value", *ATTEMPTS)}
    columns |= {
        "attempts": attempts,
        "delivery_rate": _share(delivered, finals),
        "bounce_rate": _share(failed, finals),
        "deferral_rate": _share(deferred, attempts),
    }
    return pa.table({**columns, **dict(zip(QUANTILE_NAMES, quantiles_ms(rows, QUANTILES), strict=True))})


def _share(part: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """``part`` / ``whole``, null where ``whole`` is 0."""
    return pc.divide(part.cast(pa.float64()), pc.if_else(pc.greater(whole, 0), whole.cast(pa.float64()), None))  # fmt: skip


def hours_table(rows: pa.Table) -> pa.Table:
    """``hour``, ``zone`` and counts, by hour. ``rows``: of the part ``hours``."""
    ordered = rows.sort_by([("at_ms", "ascending"), ("zone", "ascending")])
    hour = pc.multiply(ordered.column("at_ms"), 1000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"hour": hour, **{name: ordered.column(name) for name in ("zone", *ATTEMPTS)}})


def days_table(rows: pa.Table) -> pa.Table:
    """``day``, ``address``, ``provider`` and counts, by day. ``rows``: of the part ``days``."""
    keys = ("address", "provider")
    whole = rows.select(["at_ms", *keys, *ATTEMPTS]).combine_chunks()  # which sorts in half the time
    ordered = whole.sort_by([(name, "ascending") for name in ("at_ms", *keys)])
    day = pc.divide(ordered.column("at_ms"), DAY_MS).cast(pa.int32()).cast(pa.date32())
    return pa.table({"day": day, **{name: ordered.column(name) for name in (*keys, *ATTEMPTS)}})


def replies_table(replies: pa.Table) -> pa.Table:
    """A row for each kind of reply to an attempt that failed, with reason, template and an example; the most frequent first.

    ``replies``: of the part ``replies``, one for each of REPLY_KEYS and the class in the events.
    """
    named = replies.select([*REPLY_KEYS, "count", "example"])
    named = named.append_column("reason", pa.array(classes_of(replies, "example"), pa.string()))
    # Events of earlier versions have no class: theirs may be the same reply.
    summed = named.group_by([*REPLY_KEYS, "reason"]).aggregate([("count", "sum"), ("example", "min")])
    summed = summed.rename_columns(
        [name.removesuffix("_sum").removesuffix("_min") for name in summed.column_names]
    )
    order = [("count", "descending"), *((name, "ascending") for name in (*REPLY_KEYS, "reason"))]
    rows = summed.sort_by(order)
    kinds = rows.column("kind").to_pylist()
    weights: Counter[str | None] = Counter()
    for kind, count in zip(kinds, rows.column("count").to_pylist(), strict=True):
        weights[kind] += count
    templates = templates_of(weights)
    columns = {name: rows.column(name) for name in REPLY_KEYS}
    columns["code"] = rows.column("code").cast(pa.int64())
    return pa.table(
        {
            **columns,
            "reason": rows.column("reason"),
            "template": pa.array([templates.get(kind or "") for kind in kinds], pa.string()),
            "count": rows.column("count"),
            "example": rows.column("example"),
        }
    )


def warmup_table(days: pa.Table, warmups: Iterable[WarmupSchedule]) -> pa.Table:
    """``day``, ``address``, ``provider`` (empty: all), ``allowed``, ``sent``, ``over`` and ``kept`` of each allowance.

    ``days``: rows of ``days_table``. Every attempt counts, because peers count them all.
    """
    allowances: Sequence[tuple[object, str, str, int]] = [
        (day, each.address, each.provider, allowed) for each in warmups for day, allowed in each.days()
    ]
    addresses = pa.array(sorted({address for _, address, _, _ in allowances}), pa.string())
    sent: Counter[tuple[object, str, str]] = Counter()
    for row in days.filter(pc.is_in(days.column("address"), addresses)).to_pylist():
        attempts = sum(row[name] for name in ATTEMPTS)
        for provider in {row["provider"], ""}:
            sent[row["day"], row["address"], provider] += attempts
    rows = []
    for day, address, provider, allowed in allowances:
        done = sent[day, address, provider]
        rows.append((day, address, provider, allowed, done, max(done - allowed, 0), done <= allowed))
    columns = zip(*rows, strict=True) if rows else [()] * len(WARMUP)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, WARMUP, strict=True)],
        schema=WARMUP,
    )


# ---- The rows that the page shows.


def page_rows(tables: Mapping[str, pa.Table]) -> PageRows:
    """The rows that the page shows of the tables of a report."""
    complaints = _complaints(tables["complaints"]) if "complaints" in tables else None
    rates_shown = _rates(tables["rates"], complaints or ())
    return PageRows(
        rates=rates_shown,
        hours=_by_time(tables["hours"], "hour"),
        days=_days(tables["days"], busiest_providers(rates_shown)),
        reasons=_most(tables["replies"], ("reason", "event")),
        templates=_most(tables["replies"], _TEMPLATE, ROWS_MAX),
        anomalies=_anomalies(tables["anomalies"]),
        warmup=tables["warmup"].to_pylist() if "warmup" in tables else None,
        complaints=complaints,
    )


def _complaints(table: pa.Table) -> Rows:
    """The sum of all, and those of the providers and campaigns with most, the most first."""
    found = [("all", Counter({"": pc.sum(table.column("complaints")).as_py() or 0}))]
    for name in COMPLAINED:
        summed = table.group_by(name).aggregate([("complaints", "sum")])
        by: Counter[str] = Counter()
        for row in summed.to_pylist():
            by[row[name] or ""] += row["complaints_sum"]
        found.append((name, by))
    return [
        {"dimension": dimension, "value": value, "complaints": count}
        for dimension, by in found
        for value, count in sorted(by.items(), key=lambda item: (-item[1], item[0]))[:ROWS_MAX]
    ]


def _rates(table: pa.Table, complaints: Sequence[Mapping[str, Any]]) -> Rows:
    """The row of all, the busiest of each dimension, and those with complaints: these are few and need ``delivered``."""
    found: Rows = []
    for dimension in pc.unique(table.column("dimension")).to_pylist():
        rows = table.filter(pc.equal(table.column("dimension"), dimension))
        if dimension == "all":
            found += rows.to_pylist()
            continue
        wanted = pa.array(
            [row["value"] for row in complaints if row["dimension"] == dimension], pa.string()
        )
        complained = rows.filter(pc.is_in(rows.column("value"), wanted))
        named = rows.filter(pc.not_equal(rows.column("value"), ""))
        order = [("attempts", "descending"), ("value", "ascending")]
        shown = pa.concat_tables([named.sort_by(order).slice(0, ROWS_MAX), complained])
        found += {row["value"]: row for row in shown.to_pylist()}.values()
    return found


def _days(table: pa.Table, providers: Sequence[str]) -> Rows:
    wanted = pa.array(list(providers), pa.string())
    return _by_time(table.filter(pc.is_in(table.column("provider"), wanted)), "day", "provider")


def _by_time(table: pa.Table, time: str, *keys: str) -> Rows:
    """The sums of each hour or day, with ``begins``."""
    seconds = table.column(time).cast(pa.timestamp("s", "UTC")).cast(pa.int64())
    columns = {"seconds": seconds, **{name: table.column(name) for name in (*keys, *ATTEMPTS)}}
    summed = (
        pa.table(columns).group_by(["seconds", *keys]).aggregate([(name, "sum") for name in ATTEMPTS])
    )
    names = [name.removesuffix("_sum") for name in summed.column_names]
    rows = summed.rename_columns(names).to_pylist()
    return [{**row, "begins": datetime.fromtimestamp(row["seconds"], UTC)} for row in rows]


def _most(replies: pa.Table, keys: Sequence[str], limit: int | None = None) -> Rows:
    """Sums by ``keys``, the most first."""
    summed = replies.group_by(list(keys)).aggregate([("count", "sum")])
    rows: Rows = summed.rename_columns([*keys, "count"]).to_pylist()
    rows.sort(key=lambda row: (-row["count"], *(str(row[name] or "") for name in keys)))
    return rows[:limit]


def _anomalies(table: pa.Table) -> Rows:
    rows = table.to_pylist()
    return sorted(rows, key=lambda row: (-abs(row["score"]), row["hour"]))[:ROWS_MAX]
