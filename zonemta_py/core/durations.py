"""Durations as text, as commands and the page show them."""

from zonemta_py.core import clock


def ago(ms: int | None) -> str:
    """How long ago a time was; empty without one."""
    return span((clock.now_ms() - ms) / 1000) if ms else ""


def time_left(ms: int | None) -> str:
    """How long until a time; empty without one."""
    if not ms:
        return ""
    left_s = (ms - clock.now_ms()) / 1000
    return span(left_s) if left_s > 0 else "now"


def span(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{max(0, seconds):.0f}s"
