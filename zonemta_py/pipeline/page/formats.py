"""Numbers, shares and times as the page writes them. A missing value is a hyphen."""

from datetime import datetime, timedelta

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MISSING = "-"


def number(value: int | None) -> str:
    """With commas: 1,234,567."""
    return MISSING if value is None else f"{value:,}"


def rounded(value: int) -> str:
    """Of at most nine characters; exact below ten million."""
    for letter, unit in (("G", 1_000_000_000), ("M", 1_000_000)):
        if value >= 10 * unit:
            return f"{value / unit:,.1f}{letter}"
    return number(value)


def short_number(value: int) -> str:
    """For an axis: 950, 20k, 1.5M. Exact for the values of ``axis.value_ticks``."""
    for letter, unit in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1000)):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return str(value)


def percent(share: float | None) -> str:
    """Of a share between 0 and 1. Only an exact 0 is written "0.0 %", only an exact 1 "100.0 %"."""
    if share is None:
        return MISSING
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %"


def per_thousand(count: int, delivered: int | None) -> str:
    """``count`` for each 1,000 ``delivered``."""
    return f"{1000 * count / delivered:.2f}" if delivered else MISSING


def duration(ms: int | None) -> str:
    """In the largest unit that fits: 1.5 h."""
    if ms is None:
        return MISSING
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms} ms"


def moment(time: datetime) -> str:
    """Date and minute: 2026-11-30 09:00."""
    return f"{time:%Y-%m-%d %H:%M}"


def day_and_month(time: datetime) -> str:
    """30 Nov. Not by ``strftime``, which depends on the locale."""
    return f"{time.day} {MONTHS[time.month - 1]}"


def bucket_label(time: datetime, unit: timedelta) -> str:
    """The hour, day or week that begins at ``time``."""
    if unit < timedelta(days=1):
        return f"{day_and_month(time)} {time:%H:%M}"
    return day_and_month(time) if unit == timedelta(days=1) else f"week of {time:%Y-%m-%d}"
