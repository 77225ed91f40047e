"""The events as they are written to the event log, for those who watch. Without a watcher it costs nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from zonemta_py.core.codec import from_json

LINES_MAX = 10_000  # that a slow watcher has not taken; further ones are counted


class EventStream:
    """Hands the JSON lines of each frame to all watchers."""

    def __init__(self) -> None:
        self._watchers: set[_Watcher] = set()

    def publish(self, lines: bytes) -> None:
        """These lines are in the event log."""
        for watcher in self._watchers:
            watcher.put(lines)

    async def watch(self) -> AsyncIterator[dict[str, Any]]:
        """All events from now on; ``{"missed": number}`` where a slow watcher has missed some."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            while True:
                yield await watcher.get()
        finally:
            self._watchers.discard(watcher)


class _Watcher:
    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._missed = 0

    def put(self, lines: bytes) -> None:
        for line in lines.splitlines():
            if self._lines.qsize() >= LINES_MAX:
                self._missed += 1
            else:
                self._lines.put_nowait(line)

    async def get(self) -> dict[str, Any]:
        if self._missed and self._lines.empty():
            missed, self._missed = self._missed, 0
            return {"missed": missed}
        found: dict[str, Any] = from_json(await self._lines.get())
        return found
