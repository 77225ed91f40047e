"""Reasons in words, as all commands print them."""

from typing import Any

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
