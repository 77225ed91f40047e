"""What the page of a report shows, from the rows of its tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zonemta_py.pipeline.page.bars import BarChart, bar_chart
from zonemta_py.pipeline.page.buckets import (
    DAY,
    HOUR,
    AttemptCounts,
    Counted,
    TimeRange,
    bar_unit,
    summed,
    trend_unit,
)
from zonemta_py.pipeline.page.formats import day_and_month, duration, moment, number, percent
from zonemta_py.pipeline.page.page_tables import (
    PageTable,
    Row,
    anomaly_table,
    busiest,
    complaint_tables,
    damage_table,
    rates_tables,
    reasons_table,
    templates_table,
    warmup_table,
)
from zonemta_py.pipeline.page.trends import ProviderTrend, trends

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
class PageContent:
    """What the template gets. ``trend_ends``: the labels below the small charts."""

    header: PageHeader
    period: str
    damage: PageTable | None
    cards: Sequence[PageCard]
    chart: BarChart | None
    trends: Sequence[ProviderTrend]
    trend_ends: tuple[str, str]
    tables: Sequence[PageTable]


def page_content(header: PageHeader, rows: PageRows) -> PageContent:
    """Cards, charts and tables of the report."""
    period = _period(rows.hours)
    return PageContent(
        header,
        f"{moment(period.begins)} to {moment(period.ends)} UTC" if period else "",
        damage_table(header.damage) if header.damage else None,
        _cards(rows),
        _chart(rows.hours, period) if period else None,
        _trends(rows, period) if period else (),
        _trend_ends(period) if period else ("", ""),
        _tables(rows),
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
