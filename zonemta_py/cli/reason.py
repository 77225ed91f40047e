"""Reasons and changes of shaping as text, as all commands print them."""

from typing import Any

from zonemta_py.core import clock
from zonemta_py.core.durations import ago, time_left


def reason_text(why: dict[str, Any]) -> str:
    """``name, since …, until …: reason [key]``, without what is unknown."""
    text: str = why["name"].replace("_", " ")
    if why["since_ms"]:
        text += f", for {ago(why['since_ms'])}"
    if why["until_ms"]:
        text += f", next in {time_left(why['until_ms'])}"
    text += f": {why['reason']}"
    return f"{text} [{why['key']}]" if why["key"] else text


def shaped_text(row: dict[str, Any]) -> str:
    """``google from 192.0.2.1: pace: full -> 5 sessions, 300/m (cause)``, of an event ``shaped``; ``any`` for an empty name."""
    where = f"{row['provider'] or 'any'} from {row['address'] or 'any'}"
    return f"{where}: {row['what']}: {clock.with_times(row['from'])} -> {clock.with_times(row['to'])} ({row['cause']})"
