"""The HTML page of a report, from its tables: the rows that are shown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from zonemta_py.pipeline.page.content import PageHeader, PageRows, busiest_providers, page_content
from zonemta_py.pipeline.page.page_tables import COMPLAINED, ROWS_MAX
from zonemta_py.pipeline.page.rendering import render
from zonemta_py.pipeline.transforms.sums import ATTEMPTS

__all__ = ["PageHeader", "page"]

Rows = list[dict[str, Any]]

_TEMPLATE = ("template", "reason", "provider", "event", "code", "status")


def page(about: PageHeader, tables: Mapping[str, pa.Table]) -> str:
    """The complete file, from ``rates``, ``hours``, ``days``, ``replies``, ``anomalies``; ``warmup`` and ``complaints`` if there."""
    complaints = _complaints(tables["complaints"]) if "complaints" in tables else None
    rates_shown = _rates(tables["rates"], complaints or ())
    rows = PageRows(
        rates=rates_shown,
        hours=_by_time(tables["hours"], "hour"),
        days=_days(tables["days"], busiest_providers(rates_shown)),
        reasons=_most(tables["replies"], ("reason", "event")),
        templates=_most(tables["replies"], _TEMPLATE, ROWS_MAX),
        anomalies=_anomalies(tables["anomalies"]),
        warmup=tables["warmup"].to_pylist() if "warmup" in tables else None,
        complaints=complaints,
    )
    return render(page_content(about, rows))


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
