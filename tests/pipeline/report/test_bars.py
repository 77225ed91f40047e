"""The geometry of the large chart."""

import re
from datetime import UTC, datetime

from zonemta_py.pipeline.report.charts import (
    DAY,
    HEIGHT,
    HOUR,
    SLOT,
    AttemptCounts,
    BarChart,
    TimeRange,
    bar_chart,
)

BEGINS = datetime(2026, 11, 1, tzinfo=UTC)


def chart(*sums: AttemptCounts) -> BarChart:
    found = bar_chart(sums, TimeRange(BEGINS, BEGINS + len(sums) * HOUR), HOUR)
    assert found is not None
    return found


def bars(found: BarChart, name: str) -> list[tuple[int, int, int, int]]:
    """Left, top, width and height of each bar of a part."""
    path = next((part.path for part in found.parts if part.name == name), "")
    bars = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", path)
    return [(int(left), int(top), int(width), int(height)) for left, top, width, height in bars]


def test_parts_are_on_top_of_each_other() -> None:
    found = chart(*[AttemptCounts()] * 23, AttemptCounts(60, 30, 10))
    (delivered,), (deferred,), (failed,) = (
        bars(found, name) for name in ("delivered", "deferred", "failed")
    )
    assert found.values[-1].label == "100"
    assert (delivered[1], delivered[3]) == (80, 120)
    assert (deferred[1], deferred[3]) == (20, 60)
    assert (failed[1], failed[3]) == (0, 20)
    assert delivered[0] >= 23 * SLOT
    assert delivered[0] + delivered[2] <= found.width == 24 * SLOT


def test_a_single_failure_is_visible() -> None:
    """It is a pixel high, beside a million deliveries too, and the bar is not higher than the box."""
    found = chart(AttemptCounts(999_999, 0, 1), AttemptCounts(0, 0, 1))
    assert bars(found, "delivered") == [(bars(found, "failed")[0][0], 1, 3, HEIGHT - 1)]
    assert [(top, tall) for _, top, _, tall in bars(found, "failed")] == [(0, 1), (HEIGHT - 1, 1)]


def test_hours_without_attempts_have_no_bar() -> None:
    found = chart(AttemptCounts(5), AttemptCounts(), AttemptCounts(5, 1, 2))
    assert [each[0] // SLOT for each in bars(found, "delivered")] == [0, 2]
    assert [each.text for each in found.texts] == [
        "1 Nov 00:00: 5 delivered, 0 deferred, 0 failed",
        "1 Nov 02:00: 5 delivered, 1 deferred, 2 failed",
    ]
    assert bar_chart([AttemptCounts()], TimeRange(BEGINS, BEGINS + HOUR), HOUR) is None


def test_few_bars_are_narrow_and_many_have_no_gap() -> None:
    (one,) = bars(chart(AttemptCounts(1)), "delivered")
    assert one[2] < SLOT / 10
    many = bars(chart(*[AttemptCounts(1)] * 200), "delivered")
    assert many[0][2] == SLOT
    by_day = bar_chart([AttemptCounts(1)] * 30, TimeRange(BEGINS, BEGINS + 30 * DAY), DAY)
    assert by_day is not None
    assert by_day.unit == "day"
    assert by_day.texts[29].text.startswith("30 Nov: 1 delivered")
