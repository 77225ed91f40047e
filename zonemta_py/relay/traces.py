"""Live traces of dialogues, over all processes of a relay: who watches what."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol

from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import LocalError
from zonemta_py.transports.tracing import TRACER, TraceLine, normal_target

WATCHERS_MAX = 5
BACKLOG_LINES = 10_000  # that a slow watcher has not taken; further ones are counted


class OtherProcesses(Protocol):
    """The other processes of one role."""

    def set_log_level(self, level: str) -> None:
        """Log messages of ``level`` and above."""

    def set_traces(self, targets: list[str]) -> None:
        """Trace ``targets``, and nothing else."""


class Traces:
    """The watchers of a relay. ``others`` returns its other processes."""

    def __init__(self, others: Callable[[], Iterable[OtherProcesses]]) -> None:
        self._others = others
        self._watchers: dict[asyncio.Queue[TraceLine | None], str] = {}
        self._missed: dict[asyncio.Queue[TraceLine | None], int] = {}

    async def watch(self, text: str) -> AsyncIterator[dict[str, Any]]:
        """The lines of what ``text`` names, from now on; ``{"missed": number}`` where a slow watcher missed some.

        Raises LocalError.
        """
        try:
            target = normal_target(text)
        except ValueError as exc:
            raise LocalError(str(exc)) from exc
        if len(self._watchers) >= WATCHERS_MAX:
            raise LocalError(f"{WATCHERS_MAX} traces are running already")
        lines: asyncio.Queue[TraceLine | None] = asyncio.Queue(BACKLOG_LINES + 1)
        self._watchers[lines], self._missed[lines] = target, 0
        self._configure()
        try:
            while (line := await lines.get()) is not None:
                missed, self._missed[lines] = self._missed[lines], 0
                if missed:
                    yield {"missed": missed}
                yield to_plain_line(line)
        finally:
            del self._watchers[lines], self._missed[lines]
            self._configure()

    def _configure(self) -> None:
        targets = sorted(set(self._watchers.values()))
        TRACER.configure(self, targets, self._publish)
        for processes in self._others():
            processes.set_traces(targets)

    def _publish(self, line: TraceLine) -> None:
        for lines, target in self._watchers.items():
            if target in line.targets:
                if lines.qsize() < BACKLOG_LINES:
                    lines.put_nowait(line)
                else:
                    self._missed[lines] += 1

    async def drain(self, grace_s: float) -> None:
        """End all: the relay stops."""
        for lines in self._watchers:
            if not lines.full():
                lines.put_nowait(None)


def to_plain_line(line: TraceLine) -> dict[str, Any]:
    """A line as a row of an operation."""
    fields = line.__struct_fields__
    return {name: to_plain(getattr(line, name)) for name in fields if name != "targets"}
