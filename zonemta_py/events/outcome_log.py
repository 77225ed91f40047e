"""A line in the log for outcomes that an operator selects: bounces and deferrals as a rule.

Lines with the same zone, domain, outcome and reply are counted for a minute after the first; but not in the words of Postfix,
whose log analysers count lines.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from zonemta_py.core.codec import from_json
from zonemta_py.core.logs import RepeatedLines
from zonemta_py.core.text import one_line

_LEVEL = logging.INFO

log = logging.getLogger("zonemta_py.smtp")


class OutcomeLog:
    """Writes lines for events of the kinds in ``outcomes``; ``as_postfix``: in the words of Postfix."""

    def __init__(self, outcomes: Sequence[str], *, as_postfix: bool) -> None:
        self._marks = tuple(f'"event":"{name}"'.encode() for name in outcomes)
        self._lines = None if as_postfix else RepeatedLines(log)

    def publish(self, lines: bytes) -> None:
        """Write lines for events, given as JSON lines, that are in the event log."""
        if not log.isEnabledFor(_LEVEL) or not any(mark in lines for mark in self._marks):
            return
        for line in lines.splitlines():
            if any(mark in line for mark in self._marks):
                self._write(from_json(line))

    def _write(self, record: dict[str, Any]) -> None:
        if self._lines is None:
            log.log(_LEVEL, "%s", postfix_line(record))
            return
        kind = tuple(record.get(name) for name in ("event", "zone", "domain", "code", "status", "mx"))
        self._lines.write(kind, _LEVEL, partial(text_line, record))

    async def close(self) -> None:
        """Write what was counted."""
        if self._lines is not None:
            self._lines.flush()


def text_line(record: dict[str, Any]) -> str:
    """``MSGID bounced to=<…> zone=… mx=… attempt=… class=…: 550 5.1.1 …``."""
    reply = " ".join(str(record[name]) for name in ("code", "status", "reply") if record.get(name))
    mx = f" mx={record['mx']}[{record['mx_ip']}]" if record.get("mx") else ""
    about = f" class={record['class']}" if record.get("class") else ""
    return (
        f"{record['message']} {record['event']} to=<{record['recipient']}> zone={record['zone']}{mx} "
        f"attempt={record['attempt']}{about}: {one_line(reply)}"
    )


def postfix_line(record: dict[str, Any]) -> str:
    """The line of Postfix's smtp client: its log analysers read it."""
    status = {"delivered": "sent", "lapsed": "expired"}.get(record["event"], record["event"])
    relay = f"{record['mx']}[{record['mx_ip']}]" if record.get("mx") else "none"
    total_s = max(0, record["time_ms"] - record["created_ms"]) / 1000
    attempt_s = record.get("duration_ms", 0) / 1000
    code = f"{record['code']} " if record.get("code") else ""
    return (
        f"{record['message']}: to=<{record['recipient']}>, relay={relay}, delay={total_s:.2f}, "
        f"delays={max(0.0, total_s - attempt_s):.2f}/0/0/{attempt_s:.2f}, dsn={record.get('status') or '4.0.0'}, "
        f"status={status} ({code}{one_line(record.get('reply', ''))})"
    )
