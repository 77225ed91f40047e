"""Paths from an address to a provider, as ``egress_view`` makes their rows: which of them needs attention. Pure."""

from zonemta_py.admin.requests import Row


def attention(row: Row) -> tuple[int, int, str, str]:
    """The place of a path in a list: first what sends nothing, then what sends less, then the others by attempts.

    Attempts count by their number of digits, so that a list that is watched does not jump.
    """
    refused, attempts = len(str(row["refused"])), len(str(row["attempts"]))
    return (
        level(row),
        -10 * refused - attempts if row["refused"] else -attempts,
        row["provider"],
        row["address"],
    )


def level(row: Row) -> int:
    """How little a path needs attention: 0 where an operator has stopped it, 6 where all is well."""
    if row["suspended"]:
        return 0
    if row["paused_until_ms"]:
        return 1
    if is_lowered(row):
        return 2
    if any(each["late_days"] or each["paused"] for each in row["warmup"]):
        return 3
    if row["refused"]:
        return 4
    return 5 if row["waiting"] else 6


def is_lowered(row: Row) -> bool:
    """Whether the controller, or a rule, allows less than the limits."""
    return row["pace_per_min"] is not None
