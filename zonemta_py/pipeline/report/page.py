"""The page of a report: one HTML file that loads nothing and runs no script, from the rows of the tables. Jinja2 escapes every value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from zonemta_py.core.text import on_page
from zonemta_py.pipeline.events.replies import WORDS
from zonemta_py.pipeline.report import charts
from zonemta_py.pipeline.report.charts import (
    DAY,
    HOUR,
    AttemptCounts,
    BarChart,
    Counted,
    ProviderTrend,
    TimeRange,
    bar_chart,
    bar_unit,
    day_and_month,
    duration,
    moment,
    number,
    per_thousand,
    percent,
    summed,
    trend_unit,
    trends,
)

Row = Mapping[str, Any]
ROWS_MAX = 25  # of a table; the Parquet tables have all
WARMUP_ROWS_MAX = 100  # of the warm-up table
# dimension: the title of its table, and of the first column
DIMENSIONS = {
    "zone": ("Zones", "zone"), "provider": ("Providers", "provider"), "domain": ("Recipient domains", "domain"),
    "address": ("Sending addresses", "address"), "campaign": ("Campaigns", "campaign"), "tenant": ("Tenants", "tenant"),
    "tag": ("Tags", "tag"),
}  # fmt: skip
RATES_HEAD = (
    "delivered", "deferred", "bounced", "expired", "delivery", "bounce", "deferral", "tries", "p50", "p95", "p99",
)  # fmt: skip
RATES_NOTE = (
    "Tries: attempts for each recipient with a final outcome. p50 to p99: time from 250 to delivery."
)
COMPLAINED = {
    "provider": ("Complaints by provider", "provider", "no provider"),
    "campaign": ("Complaints by campaign", "campaign", "no campaign"),
}
TRENDS_MAX = 12  # providers with charts of their own


@dataclass(frozen=True, slots=True)
class PageHeader:
    """``events``: where the event log is. None: unknown, and not shown. ``damage``: a sentence for each segment or gap.

    ``is_verified``: whether it is known what is damaged.
    """

    events: str
    records: int | None
    segments: int | None
    damage: Sequence[str]
    is_verified: bool = True


@dataclass(frozen=True, slots=True)
class PageRows:
    """Rows of the report's tables, sorted and limited; None: the report has no such table.

    ``rates``: of ``all``, and the busiest of each dimension. ``hours`` and ``days``: with ``begins``, a datetime in UTC.
    ``reasons`` and ``templates``: sums of ``replies``. ``complaints``: with ``dimension`` all, provider or campaign.
    """

    rates: Sequence[Row]
    hours: Sequence[Row]
    days: Sequence[Row]
    reasons: Sequence[Row]
    templates: Sequence[Row]
    anomalies: Sequence[Row]
    warmup: Sequence[Row] | None = None
    complaints: Sequence[Row] | None = None


@dataclass(frozen=True, slots=True)
class PageCard:
    """A number at the top of the page."""

    title: str
    value: str


@dataclass(frozen=True, slots=True)
class PageTable:
    """The first ``texts`` columns are text, the others are numbers. ``empty``: what the page says without rows."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    empty: str = "Nothing to show."

    @property
    def anchor(self) -> str:
        """The id of its section."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True, slots=True)
class PageContent:
    """The values that the template gets. ``trend_ends``: the labels below the small charts."""

    header: PageHeader
    period: str
    damage: PageTable | None
    cards: Sequence[PageCard]
    chart: BarChart | None
    trends: Sequence[ProviderTrend]
    trend_ends: tuple[str, str]
    tables: Sequence[PageTable]


def render(content: PageContent) -> str:
    """The complete file."""
    return make_environment().get_template("report.html.j2").render(page=content)


def make_environment() -> Environment:
    """The templates, with what they use."""
    environment = Environment(
        loader=PackageLoader("zonemta_py.pipeline.report"),
        autoescape=True,
        finalize=on_page,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = charts.number
    return environment


def page_content(header: PageHeader, rows: PageRows) -> PageContent:
    """Cards, charts and tables of the report."""
    period = _period(rows.hours)
    return PageContent(
        header=header,
        period=f"{moment(period.begins)} to {moment(period.ends)} UTC" if period else "",
        damage=damage_table(header.damage) if header.damage else None,
        cards=_cards(rows),
        chart=_chart(rows.hours, period) if period else None,
        trends=_trends(rows, period) if period else (),
        trend_ends=_trend_ends(period) if period else ("", ""),
        tables=_tables(rows),
    )


def busiest_providers(rates: Iterable[Row]) -> list[str]:
    """Those with a trend, the busiest first."""
    rows = busiest(row for row in rates if row["dimension"] == "provider" and row["value"])
    return [row["value"] for row in rows[:TRENDS_MAX]]


def _period(hours: Sequence[Row]) -> TimeRange | None:
    """The whole hours from the first attempt to the last."""
    begins = [row["begins"] for row in hours]
    return TimeRange(min(begins), max(begins) + HOUR) if begins else None


def _cards(rows: PageRows) -> list[PageCard]:
    cards = []
    sums = next((row for row in rows.rates if row["dimension"] == "all"), None)
    if sums:
        cards = [
            PageCard("recipients delivered", number(sums["delivered"])),
            PageCard("of final outcomes delivered", percent(sums["delivery_rate"])),
            PageCard("bounced or expired", number(sums["bounced"] + sums["expired"])),
            PageCard("attempts deferred", percent(sums["deferral_rate"])),
            PageCard("median time to delivery", duration(sums["p50_ms"])),
            PageCard("99 % delivered within", duration(sums["p99_ms"])),
        ]
    if rows.complaints is not None:
        total = sum(row["complaints"] for row in rows.complaints if row["dimension"] == "all")
        cards.append(PageCard("complaints", number(total)))
    return cards


def _chart(hours: Iterable[Row], period: TimeRange) -> BarChart | None:
    unit = bar_unit(period)
    widened = period.widened(unit)
    return bar_chart(summed(_counted(hours), widened, unit), widened, unit)


def _trends(rows: PageRows, period: TimeRange) -> list[ProviderTrend]:
    """None for a report of one day: a chart needs two points."""
    unit = trend_unit(period)
    widened = period.widened(unit)
    if widened.length <= DAY:
        return []
    by_provider: dict[str, list[Row]] = {provider: [] for provider in busiest_providers(rows.rates)}
    for row in rows.days:
        if row["provider"] in by_provider:
            by_provider[row["provider"]].append(row)
    counted = {provider: _counted(found) for provider, found in by_provider.items()}
    return trends(counted, widened, unit)


def _trend_ends(period: TimeRange) -> tuple[str, str]:
    first, last = period.begins, period.ends - HOUR
    years = (f" {first.year}", f" {last.year}") if first.year != last.year else ("", "")
    return day_and_month(first) + years[0], day_and_month(last) + years[1]


def _counted(rows: Iterable[Row]) -> Counted:
    return [
        (
            row["begins"],
            AttemptCounts(row["delivered"], row["deferred"], row["bounced"] + row["expired"]),
        )
        for row in rows
    ]


def _tables(rows: PageRows) -> list[PageTable]:
    tables = [] if rows.complaints is None else complaint_tables(rows.complaints, rows.rates)
    tables += rates_tables(rows.rates)
    if rows.warmup is not None:
        tables.append(warmup_table(rows.warmup))
    return [
        *tables,
        anomaly_table(rows.anomalies),
        reasons_table(rows.reasons),
        templates_table(rows.templates),
    ]


# ---- Its tables.


def damage_table(damage: Sequence[str]) -> PageTable:
    """A table of what is damaged or missing in the event log."""
    note = "The sums are without the records that cannot be read."
    if len(damage) > ROWS_MAX:
        note += f" The first {ROWS_MAX} of {number(len(damage))} are shown."
    return PageTable(
        "The event log is damaged",
        note,
        ("damaged segment, or gap between segments",),
        [(text,) for text in damage[:ROWS_MAX]],
    )


def rates_tables(rows: Iterable[Row]) -> list[PageTable]:
    """One for each dimension that has values, of rows of ``rates``."""
    found: dict[str, list[Row]] = {dimension: [] for dimension in DIMENSIONS}
    for row in rows:
        if row["dimension"] in found and row["value"]:
            found[row["dimension"]].append(row)
    tables = []
    for dimension, (title, first) in DIMENSIONS.items():
        rows_shown = busiest(found[dimension])
        note = _first_of("attempts", rows_shown) + RATES_NOTE
        if rows_shown:
            tables.append(
                PageTable(title, note, (first, *RATES_HEAD), [_rates(row) for row in rows_shown])
            )
    return tables


def _first_of(what: str, rows: Sequence[object]) -> str:
    """The sentence of a note where there may be more rows than are shown; else empty."""
    return f"The {ROWS_MAX} with most {what}. " if len(rows) == ROWS_MAX else ""


def busiest(rows: Iterable[Row]) -> list[Row]:
    """The ROWS_MAX with most attempts, of one dimension."""
    return sorted(rows, key=lambda row: (-row["attempts"], row["value"]))[:ROWS_MAX]


def _rates(row: Row) -> list[str]:
    finals = row["delivered"] + row["bounced"] + row["expired"]
    return [
        row["value"],
        *(number(row[name]) for name in ("delivered", "deferred", "bounced", "expired")),
        *(percent(row[name]) for name in ("delivery_rate", "bounce_rate", "deferral_rate")),
        f"{row['attempts'] / finals:.2f}" if finals else "-",
        *(duration(row[f"p{n}_ms"]) for n in (50, 95, 99)),
    ]


def complaint_tables(complaints: Sequence[Row], rates: Iterable[Row]) -> list[PageTable]:
    """By provider and by campaign; ``complaints`` has ``dimension``, ``value`` and ``complaints``, the most first."""
    delivered = {(row["dimension"], row["value"]): row["delivered"] for row in rates}
    tables = []
    for dimension, (title, first, without) in COMPLAINED.items():
        rows = [
            (
                row["value"] or without,
                number(row["complaints"]),
                number(delivered.get((dimension, row["value"]))),
                per_thousand(row["complaints"], delivered.get((dimension, row["value"]))),
            )
            for row in complaints
            if row["dimension"] == dimension
        ]
        note = (
            f"The {ROWS_MAX} with most complaints, and complaints for each 1,000 recipients delivered."
        )
        head = (first, "complaints", "delivered", "per 1,000")
        tables.append(PageTable(title, note, head, rows, empty="No complaints."))
    return tables


def warmup_table(rows: Sequence[Row]) -> PageTable:
    """Rows of ``warmup``; of many, those above their allowance come before others."""
    kept = sum(row["kept"] for row in rows)
    note = f"Attempts of each address, and what its schedule allows; {number(kept)} of {number(len(rows))} days within it."
    shown = list(rows)
    if len(rows) > WARMUP_ROWS_MAX:
        note += f" {WARMUP_ROWS_MAX} are shown, those above it before others."
        shown = sorted(rows, key=lambda row: (row["kept"], row["day"]))[:WARMUP_ROWS_MAX]
    shown.sort(key=lambda row: (row["day"], row["address"] or "", row["provider"] or ""))
    cells = [
        (
            f"{row['day']}", row["address"] or "", row["provider"] or "all",
            number(row["allowed"]), number(row["sent"]), number(row["over"]) if row["over"] else "",
        )
        for row in shown
    ]  # fmt: skip
    return PageTable(
        "Warm-up", note, ("day", "address", "provider", "allowed", "sent", "over"), cells, texts=3
    )


def anomaly_table(rows: Iterable[Row]) -> PageTable:
    """Rows of ``anomalies``, the largest score first."""
    cells = [
        (
            row["provider"], moment(row["hour"]), _explanation(row), row["measure"],
            percent(row["rate"]), percent(row["usual"]), number(row["attempts"]),
        )
        for row in rows
    ]  # fmt: skip
    note = (
        "Hours (UTC) in which a rate of a provider deviated from its own history, and the replies that explain it; "
        f"the {ROWS_MAX} that deviated most."
    )
    head = ("provider", "hour", "replies", "rate", "share", "usual", "attempts")
    return PageTable("Anomalous hours", note, head, cells, texts=4)


def _explanation(row: Row) -> str:
    replies = row["replies"] or ()
    return "; ".join(f"{number(each['count'])} of: {each['template'] or 'no reply'}" for each in replies)


def reasons_table(rows: Iterable[Row]) -> PageTable:
    """Rows with ``reason``, ``event`` and ``count``, the most first."""
    cells = [
        (row["reason"], WORDS.get(row["reason"], ""), row["event"], number(row["count"])) for row in rows
    ]
    note = "Classes of replies to failed attempts."
    head = ("reason", "about", "event", "count")
    return PageTable("Reasons of failures", note, head, cells, texts=3)


def templates_table(rows: Iterable[Row]) -> PageTable:
    """Rows of ``replies`` that were summed by template, the most first."""
    cells = [
        (
            row["template"] or "no reply", row["reason"], row["provider"] or "", row["event"],
            f"{row['code'] or ''} {row['status'] or ''}".strip(), number(row["count"]),
        )
        for row in rows
    ]  # fmt: skip
    note = f"The {ROWS_MAX} most frequent templates of replies; words that differ are <*>."
    head = ("reply", "reason", "provider", "event", "code", "count")
    return PageTable("Replies to failures", note, head, cells, texts=5)
