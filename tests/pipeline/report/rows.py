"""Rows of a report, as they are collected from its tables."""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

from zonemta_py.pipeline.report.page import DIMENSIONS, ROWS_MAX, PageRows

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOSTILE = (
    '<script>document.title = "taken over"</script>',
    '"><img src=x onerror="document.title=1">',
    "</style><style>body { display: none }</style>",
    "{{ 7 * 7 }} {% raw %} &lt;b&gt; &amp;",
    "a-very-long-name-without-any-place-to-break-it." * 5 + "example",
)
PROVIDERS = (
    "google",
    "microsoft",
    "yahoo",
    "icloud",
    "gmx",
    "webde",
    "orange.example",
    "libero.example",
)
_COUNTS = ("delivered", "deferred", "bounced", "expired")


def counts(attempts: int, *, bad: float = 0.02, slow: float = 0.08) -> dict[str, int]:
    """The four results of this number of attempts."""
    bounced, deferred = round(attempts * bad), round(attempts * slow)
    return {
        "delivered": attempts - bounced - deferred, "deferred": deferred, "bounced": bounced, "expired": 0,
    }  # fmt: skip


def hours(number: int, scale: int = 1000) -> list[dict[str, Any]]:
    """One row for each hour, with a rhythm of days and weeks."""
    rows = []
    for index in range(number):
        time = BEGINS + index * HOUR
        day = 0.4 if time.weekday() >= 5 else 1.0
        attempts = round(scale * day * (1.1 + math.sin((time.hour - 8) / 24 * 2 * math.pi)))
        rows.append({"begins": time, **counts(attempts, slow=0.3 if index % 97 < 5 else 0.06)})
    return rows


def days(number: int, providers: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row for each day and provider; the last provider has no mail in some weeks."""
    rows = []
    for place, provider in enumerate(providers):
        for index in range(number):
            if place == len(providers) - 1 and index % 14 < 6:
                continue
            attempts = round((24_000 / (place + 1)) * (1.2 + math.sin(index / 3 + place)))
            slow = 0.4 if (index + place) % 11 == 0 else 0.05 + 0.02 * math.sin(index)
            rows.append(
                {
                    "begins": BEGINS + index * DAY,
                    "provider": provider,
                    **counts(attempts, bad=0.01 + 0.005 * (index % 5), slow=slow),
                }
            )
    return rows


def rate(dimension: str, value: str, attempts: int) -> dict[str, Any]:
    """A row of ``rates``."""
    row = counts(attempts)
    finals = row["delivered"] + row["bounced"]
    return {
        "dimension": dimension, "value": value, **row, "attempts": attempts,
        "delivery_rate": row["delivered"] / finals if finals else None,
        "bounce_rate": row["bounced"] / finals if finals else None,
        "deferral_rate": row["deferred"] / attempts,
        "p50_ms": 840, "p95_ms": 95_000, "p99_ms": 7_300_000,
    }  # fmt: skip


def report_rows(day_count: int, names: tuple[str, ...] = (), complaints: bool = True) -> PageRows:
    """A whole report; ``names`` are zones, domains, replies and all else that others choose."""
    named = (*names, *(f"name-{n}.example" for n in range(ROWS_MAX - len(names))))
    providers = (*names, *PROVIDERS)[:12]
    rates = [rate("all", "", 24_000 * day_count)]
    for dimension in DIMENSIONS:
        values = providers if dimension == "provider" else named
        rates += [rate(dimension, value, 2_400_000 // (n + 1)) for n, value in enumerate(values)]
    return PageRows(
        rates=rates,
        hours=hours(24 * day_count),
        days=days(day_count, providers),
        reasons=[
            {"reason": reason, "event": "bounced", "count": 4000 - 10 * n}
            for n, reason in enumerate(("invalid_recipient", "mailbox_full", "rate_limited", "content"))
        ],
        templates=[
            {
                "template": f"{name} user unknown: the mailbox <*> does not exist here, see our pages about it", "reason": "invalid_recipient",
                "provider": name, "event": "bounced", "code": 550, "status": "5.1.1", "count": 900 - n,
            }
            for n, name in enumerate(named)
        ],
        anomalies=[
            {
                "provider": name, "hour": BEGINS + n * HOUR, "measure": "deferral", "rate": 0.41, "usual": 0.034,
                "score": 9.0, "attempts": 1234,
                "replies": [{"count": 321, "reason": "connection_limited", "template": f"{name} too many connections from <*>"}],
            }
            for n, name in enumerate(named[:8])
        ],
        warmup=[
            {
                "day": date(2026, 11, n + 1), "address": "203.0.113.7", "provider": "google" if n % 2 else "",
                "allowed": 200 * (n + 1), "sent": 1000, "over": max(0, 1000 - 200 * (n + 1)), "kept": n >= 4,
            }
            for n in range(8)
        ],
        complaints=_complaints(named, providers) if complaints else None,
    )  # fmt: skip


def _complaints(named: tuple[str, ...], providers: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"dimension": "all", "value": "", "complaints": 4321},
        *({"dimension": "provider", "value": name, "complaints": 2000 // (n + 1)} for n, name in enumerate(providers[:6])),
        *({"dimension": "campaign", "value": name, "complaints": 1500 // (n + 1)} for n, name in enumerate((*named[:6], ""))),
    ]  # fmt: skip
