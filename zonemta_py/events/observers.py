"""The observers of the event log: lines in the log of the relay, and those who watch events.

An ``Exporter`` calls ``publish`` of each with the JSON lines of a frame that is in the event log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.core.logs import RepeatedLines
from zonemta_py.core.text import one_line

# ---- A line for outcomes that an operator selects: bounces and deferrals as a rule.
#
# Lines with the same zone, domain, outcome and reply are counted for a minute after the first; but not in the words of Postfix,
# whose log analysers count lines.

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


# ---- The events for those who watch. Without a watcher it costs nothing.

WATCHERS_MAX = 20
BACKLOG_BYTES = 8 << 20  # that a slow watcher has not taken; further events are counted


class EventStream:
    """Hands the JSON lines of each frame to all watchers."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()
        self._closed = False

    def publish(self, lines: bytes) -> None:
        """These lines are in the event log."""
        for watcher in self._watchers:
            watcher.put(lines)

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """All events from now on, until ``close``; ``{"missed": number}`` where a slow watcher has missed some.

        Raises LocalError when there are too many watchers.
        """
        if len(self._watchers) >= WATCHERS_MAX:
            raise LocalError(f"{WATCHERS_MAX} clients watch the events already")
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            while not self._closed:
                for record in await watcher.take():
                    yield record
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End all watches: the relay stops."""
        self._closed = True
        for watcher in self._watchers:
            watcher.put(b"")


class _Watcher:
    def __init__(self) -> None:
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._missed = 0
        self._came = asyncio.Event()

    def put(self, lines: bytes) -> None:
        if self._size_bytes + len(lines) > BACKLOG_BYTES:
            self._missed += lines.count(b"\n")
        else:
            self._frames.append(lines)
            self._size_bytes += len(lines)
        self._came.set()

    async def take(self) -> list[dict[str, Any]]:
        """The events of the next frame, or how many were missed."""
        await self._came.wait()
        if self._frames:
            lines = self._frames.popleft()
            self._size_bytes -= len(lines)
            return [from_json(line) for line in lines.splitlines()]
        self._came.clear()
        missed, self._missed = self._missed, 0
        return [{"missed": missed}] if missed else []
