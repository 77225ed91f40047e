"""The small charts of the busiest providers: attempts and rates by day or week. Geometry only; the template draws it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from zonemta_py.pipeline.page.axis import round_up
from zonemta_py.pipeline.page.bars import unit_name
from zonemta_py.pipeline.page.buckets import AttemptCounts, Counted, TimeRange, summed
from zonemta_py.pipeline.page.formats import percent, rounded, short_number

HEIGHT = 32  # of a chart, in pixels
POINT = 4  # units of the width for each day or week; a point is in its middle
STEPS = 1000  # rates are compared in thousandths, so that the ends of an axis are round

Rate = Callable[[AttemptCounts], float | None]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """``total``: of the whole period. ``low`` and ``high``: the ends of the axis. ``is_area``: the path is filled."""

    title: str
    name: str
    total: str
    low: str
    high: str
    path: str
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class ProviderTrend:
    """``lines`` are paths in a box of ``width`` units by ``height`` pixels. ``unit``: day or week."""

    provider: str
    unit: str
    width: int
    height: int
    lines: Sequence[Sparkline]


def delivery_rate(counts: AttemptCounts) -> float | None:
    """Of the recipients with a final outcome; None without one."""
    return counts.delivered / counts.finals if counts.finals else None


def bounce_rate(counts: AttemptCounts) -> float | None:
    """Of the recipients with a final outcome; None without one."""
    return counts.failed / counts.finals if counts.finals else None


def deferral_rate(counts: AttemptCounts) -> float | None:
    """Of the attempts; None without one."""
    return counts.deferred / counts.attempts if counts.attempts else None


def trends(counted: Mapping[str, Counted], period: TimeRange, unit: timedelta) -> list[ProviderTrend]:
    """One for each provider of ``counted``, in its order."""
    return [
        _trend(provider, summed(rows, period, unit), unit_name(unit))
        for provider, rows in counted.items()
    ]


def _trend(provider: str, sums: Sequence[AttemptCounts], unit: str) -> ProviderTrend:
    total = sum(sums, AttemptCounts())
    lines = [_attempts(sums, total)]
    for title, name, rate in (
        ("delivery", "delivered", delivery_rate),
        ("deferral", "deferred", deferral_rate),
        ("bounce", "failed", bounce_rate),
    ):
        low, high = _ends([rate(each) for each in sums], from_above=rate is delivery_rate)
        path = _line([rate(each) for each in sums], low, high)
        lines.append(Sparkline(title, name, percent(rate(total)), _share(low), _share(high), path))
    return ProviderTrend(provider, unit, POINT * len(sums), HEIGHT, lines)


def _attempts(sums: Sequence[AttemptCounts], total: AttemptCounts) -> Sparkline:
    high = round_up(max(1, *(each.attempts for each in sums)))
    path = "".join(
        f"M{POINT * index} {HEIGHT}v-{max(1, round(each.attempts / high * HEIGHT))}h{POINT - 1}V{HEIGHT}z"
        for index, each in enumerate(sums)
        if each.attempts
    )
    return Sparkline(
        "attempts", "attempts", rounded(total.attempts), "0", short_number(high), path, is_area=True
    )


def _ends(rates: Iterable[float | None], *, from_above: bool) -> tuple[float, float]:
    """The ends of the axis of rates: 0 and a round share, or with ``from_above`` a round share and 1."""
    known = [1 - rate if from_above else rate for rate in rates if rate is not None]
    steps = math.ceil(STEPS * max(known, default=0.0))
    reach = min(STEPS, round_up(max(STEPS // 100, steps))) / STEPS
    return (1 - reach, 1.0) if from_above else (0.0, reach)


def _line(rates: Sequence[float | None], low: float, high: float) -> str:
    """A line through the days with a rate; where one has none the line is interrupted, a lone day is a short line."""
    path, before = [], False
    for index, rate in enumerate(rates):
        if rate is None:
            before = False
            continue
        y = HEIGHT - round((rate - low) / (high - low) * HEIGHT)
        x = POINT * index + POINT // 2
        is_alone = not before and (index + 1 == len(rates) or rates[index + 1] is None)
        path.append(f"M{x - 1} {y}h2" if is_alone else f"{'L' if before else 'M'}{x} {y}")
        before = True
    return "".join(path)


def _share(share: float) -> str:
    return f"{100 * share:g} %"
