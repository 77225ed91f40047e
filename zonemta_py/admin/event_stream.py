"""The events as they are written to the event log, for those who watch. Without a watcher it costs nothing."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError

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
