"""Results of a benchmark as bars: text for a terminal, or a picture by matplotlib (extra ``bench``)."""

from collections.abc import Sequence
from pathlib import Path

from zonemta_py.bench.measure import Measurement
from zonemta_py.core.errors import LocalError

WIDTH = 40  # characters of the longest bar of text
_BAR = 0.8  # of the width of a group


def bars(title: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    """Bars of text: one line per value, the longest WIDTH characters wide."""
    most = max((value for _, value in values), default=0.0) or 1.0
    wide = max((len(name) for name, _ in values), default=0)
    lines = [title]
    for name, value in values:
        bar = "█" * max(1, round(WIDTH * value / most)) if value > 0 else ""
        lines.append(f"  {name:<{wide}}  {bar} {value:,.{'3g' if value < 100 else '0f'}} {unit}")
    return "\n".join(lines)


def save_picture(path: Path, results: Sequence[Measurement], titles: dict[str, str], note: str) -> None:
    """Draw rate and CPU, a group of bars for each scenario, into ``path`` (PNG, SVG or PDF by its suffix).

    Raises LocalError without matplotlib, or when the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise LocalError("a picture needs matplotlib: pip install 'zonemta_py[bench]'") from exc
    relays = list(dict.fromkeys(m.relay for m in results))
    scenarios = list(dict.fromkeys(m.scenario for m in results))
    figure = Figure(figsize=(2 + 2.2 * len(scenarios), 7), layout="constrained")
    rates, costs = figure.subplots(2, 1, sharex=True)
    for number, relay in enumerate(relays):
        own = {m.scenario: m for m in results if m.relay == relay}
        width = _BAR / len(relays)
        places = [at - _BAR / 2 + width * (number + 0.5) for at in range(len(scenarios))]
        for axes, name in ((rates, "per_second"), (costs, "cpu_ms")):
            values = [getattr(own[s], name) if s in own else 0 for s in scenarios]
            bars = axes.bar(places, values, width, label=relay)
            axes.bar_label(bars, [_short(value) for value in values], fontsize=8)
    rates.set_ylabel("deliveries/s")
    costs.set_ylabel("CPU ms per delivery")
    for axes in (rates, costs):
        axes.set_yscale("log")
        axes.grid(axis="y", alpha=0.3)
    costs.set_xticks(range(len(scenarios)), [titles[s].replace(", ", "\n") for s in scenarios])
    rates.legend()
    figure.supxlabel(note, fontsize=8)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as exc:
        raise LocalError(f"{path}: {exc}") from exc


def _short(value: float) -> str:
    if not value:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
