"""The small charts of providers."""

from datetime import UTC, datetime

from zonemta_py.pipeline.report.charts import (
    DAY,
    TREND_HEIGHT,
    AttemptCounts,
    ProviderTrend,
    TimeRange,
    trends,
)

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)


def trend(*by_day: AttemptCounts | None) -> ProviderTrend:
    rows = [(BEGINS + n * DAY, counts) for n, counts in enumerate(by_day) if counts]
    (found,) = trends({"google": rows}, TimeRange(BEGINS, BEGINS + len(by_day) * DAY), DAY)
    return found


def test_totals_and_ends() -> None:
    """Rates of the whole period; axes end at round numbers."""
    found = trend(AttemptCounts(90, 0, 10), AttemptCounts(100, 50, 0))
    assert [(each.title, each.total, each.low, each.high) for each in found.lines] == [
        ("attempts", "250", "0", "200"),
        ("delivery", "95.0 %", "90 %", "100 %"),
        ("deferral", "20.0 %", "0 %", "50 %"),
        ("bounce", "5.0 %", "0 %", "10 %"),
    ]
    assert found.unit == "day"


def test_lines() -> None:
    attempts, delivery, deferral, bounce = trend(
        AttemptCounts(90, 0, 10), AttemptCounts(100, 100, 0)
    ).lines
    assert (
        attempts.path
        == f"M0 {TREND_HEIGHT}v-16h3V{TREND_HEIGHT}zM4 {TREND_HEIGHT}v-32h3V{TREND_HEIGHT}z"
    )
    assert attempts.is_area
    assert delivery.path == f"M2 {TREND_HEIGHT}L6 0"
    assert deferral.path == f"M2 {TREND_HEIGHT}L6 0"
    assert bounce.path == f"M2 0L6 {TREND_HEIGHT}"


def test_a_day_without_mail_interrupts_the_line() -> None:
    found = trend(AttemptCounts(1), None, AttemptCounts(1), AttemptCounts(1))
    assert found.lines[2].path == f"M1 {TREND_HEIGHT}h2M10 {TREND_HEIGHT}L14 {TREND_HEIGHT}"


def test_rates_that_are_not_known() -> None:
    """Only deferrals: no recipient has a final outcome."""
    _, delivery, deferral, bounce = trend(AttemptCounts(0, 5, 0), AttemptCounts(0, 5, 0)).lines
    assert (delivery.total, delivery.path) == (bounce.total, bounce.path) == ("-", "")
    assert (deferral.total, deferral.high) == ("100.0 %", "100 %")
