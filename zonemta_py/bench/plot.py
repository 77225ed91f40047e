"""Bars of text for a terminal or a report: no library draws these more plainly."""

from collections.abc import Sequence

WIDTH = 40


def bars(title: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    """One line per value, the longest WIDTH wide."""
    most = max((value for _, value in values), default=0.0) or 1.0
    wide = max((len(name) for name, _ in values), default=0)
    lines = [title]
    for name, value in values:
        bar = "█" * max(1, round(WIDTH * value / most)) if value > 0 else ""
        lines.append(
            f"  {name:<{wide}}  {bar} {value:,.3g} {unit}"
            if value < 100
            else f"  {name:<{wide}}  {bar} {value:,.0f} {unit}"
        )
    return "\n".join(lines)
