"""The large chart: attempts of each hour, day or week as bars of three parts. Geometry only; the template draws it.

The parts are paths in a box of ``width`` units by HEIGHT pixels that the browser stretches to the width of the screen; axes
are in shares of that box, so that text keeps its size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from zonemta_py.pipeline.page import axis
from zonemta_py.pipeline.page.axis import AxisTick
from zonemta_py.pipeline.page.buckets import DAY, HOUR, AttemptCounts, TimeRange
from zonemta_py.pipeline.page.formats import bucket_label, number

HEIGHT = 200  # of the box, in pixels
SLOT = 20  # units of the width for each bar and the gap behind it
GAPS_MAX = 120  # more bars than that have no gaps: each is a few pixels wide
BAR_SHARE_MAX = 0.08  # of the width, for charts with few bars
UNIT_NAMES = {HOUR: "hour", DAY: "day"}


@dataclass(frozen=True, slots=True)
class BarPart:
    """All parts of one colour. ``name``: delivered, deferred or failed. ``path``: as in the attribute d."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class BarText:
    """What the browser shows for a bar, which begins at ``x``."""

    x: int
    text: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """``unit``: hour, day or week. ``slot``: the width of each of ``texts``."""

    unit: str
    width: int
    height: int
    slot: int
    values: Sequence[AxisTick]
    times: Sequence[AxisTick]
    parts: Sequence[BarPart]
    texts: Sequence[BarText]


def unit_name(unit: timedelta) -> str:
    """Hour, day or week."""
    return UNIT_NAMES.get(unit, "week")


def bar_chart(sums: Sequence[AttemptCounts], period: TimeRange, unit: timedelta) -> BarChart | None:
    """A bar for each of ``sums``, which are those of ``period`` by ``unit``. None without an attempt."""
    most = max((each.attempts for each in sums), default=0)
    if not most:
        return None
    width = SLOT * len(sums)
    bar = min(SLOT if len(sums) > GAPS_MAX else SLOT - 4, max(1, int(width * BAR_SHARE_MAX)))
    paths: dict[str, list[str]] = {"delivered": [], "deferred": [], "failed": []}
    texts = []
    for index, counts in enumerate(sums):
        if not counts.attempts:
            continue
        x = SLOT * index + (SLOT - bar) // 2
        for name, top, tall in _parts(counts, axis.axis_end(most)):
            paths[name].append(f"M{x} {top}h{bar}v{tall}h-{bar}z")
        texts.append(
            BarText(SLOT * index, _text(counts, bucket_label(period.begins + index * unit, unit)))
        )
    return BarChart(
        unit_name(unit),
        width,
        HEIGHT,
        SLOT,
        axis.value_ticks(most),
        axis.time_ticks(period, unit),
        [BarPart(name, "".join(found)) for name, found in paths.items() if found],
        texts,
    )


def _parts(counts: AttemptCounts, end: int) -> Iterator[tuple[str, int, int]]:
    """Name, top and height of each part, from below. Every part that is not zero is at least a pixel high."""
    values = {name: getattr(counts, name) for name in ("delivered", "deferred", "failed")}
    heights = {name: max(1, round(value / end * HEIGHT)) for name, value in values.items() if value}
    tallest = max(heights, key=lambda name: heights[name])
    heights[tallest] -= max(0, sum(heights.values()) - HEIGHT)  # what small parts gained
    base = HEIGHT
    for name, tall in heights.items():
        base -= tall
        yield name, base, tall


def _text(counts: AttemptCounts, label: str) -> str:
    return (
        f"{label}: {number(counts.delivered)} delivered, {number(counts.deferred)} deferred, "
        f"{number(counts.failed)} failed"
    )
