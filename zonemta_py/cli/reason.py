"""Reasons and changes of shaping as text, as all commands print them."""

from typing import Any

from zonemta_py.core import clock
from zonemta_py.core.durations import ago, time_left


def reason_text(why: dict[str, Any]) -> str:
    """``name, for …, next in …: reason [key]``, without what is unknown, or less than a second: limits such as a rate come and go."""
    text: str = why["name"].replace("_", " ")
    if why["since_ms"] and (since := ago(why["since_ms"])) != "0s":
        text += f", for {since}"
    left = time_left(why["until_ms"])
    if left:
        text += ", next now" if left in ("0s", "now") else f", next in {left}"
    text += f": {why['reason']}"
    return f"{text} [{why['key']}]" if why["key"] else text


def shaped_text(row: dict[str, Any]) -> str:
    """``google from 192.0.2.1: pace: full -> 5 sessions, 300/m (cause)``, of an event ``shaped``; ``any`` for an empty name."""
    where = f"{row['provider'] or 'any'} from {row['address'] or 'any'}"
    return f"{where}: {row['what']}: {clock.with_times(row['from'])} -> {clock.with_times(row['to'])} ({row['cause']})"
