"""The HTML page of a report, from its tables."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from zonemta_py.pipeline.rules import html
from zonemta_py.pipeline.transforms import rates

ROWS_MAX = 25  # of a table on the page; the Parquet tables have all
TITLES = {
    "zone": "Zones", "provider": "Providers", "domain": "Recipient domains", "address": "Sending addresses",
    "campaign": "Campaigns", "tenant": "Tenants", "tag": "Tags",
}  # fmt: skip
HEAD = (
    "", "delivered", "deferred", "bounced", "expired", "delivery", "bounce", "deferral", "tries", "p50", "p95", "p99",
)  # fmt: skip


def page(events: str, sums: Row, tables: dict[str, DataFrame], damage: Sequence[str]) -> str:
    """The complete file; ``sums``: the row of ``rates`` for all attempts."""
    sections = [_figures(sums), _chart(tables["hours"]), *_by_dimension(tables["rates"])]
    if damage:
        sections.insert(0, _damage(damage))
    if "warmup" in tables:
        sections.append(_warmup(tables["warmup"]))
    sections += [_anomalies(tables["anomalies"]), *_replies(tables["replies"])]
    return html.page("Delivery report", f"from {events}", sections)


def _damage(damage: Sequence[str]) -> str:
    return html.table(
        "The event log is damaged",
        f"{len(damage)} damaged segments or gaps; the sums are without the records that cannot be read",
        ("what",),
        [(text,) for text in damage[:ROWS_MAX]],
    )


def _figures(sums: Row) -> str:
    return html.cards(
        [
            html.Figure("recipients delivered", f"{sums['delivered']:,}"),
            html.Figure("of final outcomes delivered", _percent(sums["delivery_rate"])),
            html.Figure("bounced or expired", f"{sums['bounced'] + sums['expired']:,}"),
            html.Figure("attempts deferred", _percent(sums["deferral_rate"])),
            html.Figure("median time to delivery", _time(sums["p50_ms"])),
            html.Figure("99 % delivered within", _time(sums["p99_ms"])),
        ]
    )


def _chart(hours: DataFrame) -> str:
    together = hours.groupBy("hour").agg(*(F.sum(name).alias(name) for name in rates.ATTEMPTS))
    return html.bar_chart(
        "By hour",
        "attempts: delivered, deferred (amber), bounced or expired (red); UTC",
        [
            html.StackedBar(f"{row['hour']:%d %H:%M}", row["delivered"], row["deferred"], row["bounced"] + row["expired"])
            for row in together.orderBy("hour").collect()
        ],
    )  # fmt: skip


def _by_dimension(table: DataFrame) -> list[str]:
    sections = []
    for dimension, title in TITLES.items():
        rows = table.where((F.col("dimension") == dimension) & (F.col("value") != ""))
        shown = rows.orderBy(F.desc("attempts"), "value").limit(ROWS_MAX).collect()
        note = (
            f"the {ROWS_MAX} with most attempts; tries: attempts for each recipient with a final outcome; "
            "p50 to p99: time from 250 to delivery"
        )
        if shown:
            sections.append(html.table(title, note, HEAD, [_cells(row) for row in shown]))
    return sections


def _warmup(table: DataFrame) -> str:
    rows = table.orderBy("day", "address", "provider").collect()
    kept = sum(row["kept"] for row in rows)
    return html.table(
        "Warm-up",
        f"attempts of each address, and what its schedule allows; {kept} of {len(rows)} days within it",
        ("day", "address", "provider", "allowed", "sent", "over"),
        [
            (f"{row['day']}", row["address"], row["provider"] or "all", f"{row['allowed']:,}", f"{row['sent']:,}", f"{row['over']:,}" if row["over"] else "")
            for row in rows
        ],
        texts=3,
    )  # fmt: skip


def _anomalies(table: DataFrame) -> str:
    rows = table.orderBy(F.desc(F.abs("score")), "hour").limit(ROWS_MAX).collect()
    return html.table(
        "Anomalous hours",
        "hours in which a rate of a provider deviated from its own history, and the replies that explain it",
        ("provider", "hour", "replies", "rate", "share", "usual", "attempts"),
        [
            (row["provider"], f"{row['hour']:%Y-%m-%d %H:%M}", "; ".join(f"{each['count']:,} of: {each['template']}" for each in row["replies"] or ()), row["measure"], _percent(row["rate"]), _percent(row["usual"]), f"{row['attempts']:,}")
            for row in rows
        ],
        texts=4,
    )  # fmt: skip


def _replies(table: DataFrame) -> list[str]:
    reasons = table.groupBy("reason", "event").agg(F.sum("count").alias("count"))
    templates = table.groupBy("template", "reason", "provider", "event", "code", "status").agg(
        F.sum("count").alias("count")
    )
    by_reason = reasons.orderBy(F.desc("count"), "reason", "event").collect()
    by_template = templates.orderBy(F.desc("count"), "template", "provider").limit(ROWS_MAX).collect()
    return [
        html.table(
            "Reasons of failures",
            "classes of replies to failed attempts",
            ("reason", "event", "count"),
            [(row["reason"], row["event"], f"{row['count']:,}") for row in by_reason],
            texts=2,
        ),
        html.table(
            "Replies to failures",
            "templates of replies; words that differ are <*>",
            ("reply", "reason", "provider", "event", "code", "count"),
            [
                (row["template"] or "", row["reason"], row["provider"] or "", row["event"], f"{row['code']} {row['status']}", f"{row['count']:,}")
                for row in by_template
            ],
            texts=4,
        ),
    ]  # fmt: skip


def _cells(row: Row) -> list[str]:
    counts = [f"{row[name]:,}" for name in rates.ATTEMPTS]
    shares = [_percent(row[name]) for name in ("delivery_rate", "bounce_rate", "deferral_rate")]
    finals = row["delivered"] + row["bounced"] + row["expired"]
    tries = f"{row['attempts'] / finals:.2f}" if finals else "-"
    return [
        row["value"],
        *counts,
        *shares,
        tries,
        *(_time(row[f"p{n}_ms"]) for n in (50, 95, 99)),
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _time(ms: int | None) -> str:
    if ms is None:
        return "-"
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms} ms"
