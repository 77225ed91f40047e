"""The parts of a relay: started in the order of one list, stopped in reverse."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)


async def _nothing() -> None:
    pass


async def _nothing_to_drain(grace_s: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Part:
    """One part. ``drain`` ends its work within ``grace_s``; ``close`` frees what it holds."""

    name: str
    start: Callable[[], Awaitable[object]] = _nothing
    drain: Callable[[float], Awaitable[object]] = _nothing_to_drain
    close: Callable[[], Awaitable[object]] = _nothing


class Parts:
    """Starts and stops ``parts``."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._begun: list[Part] = []

    async def start(self) -> None:
        """Start all in order. After an error ``stop`` stops those that were begun."""
        for part in self._parts:
            self._begun.append(part)
            await part.start()

    async def stop(self, grace_s: float) -> None:
        """Drain all at once, then close each, the last started first. Errors are logged."""
        begun, self._begun = self._begun[::-1], []
        results = await asyncio.gather(*(part.drain(grace_s) for part in begun), return_exceptions=True)
        for part, result in zip(begun, results, strict=True):
            if isinstance(result, BaseException):
                log.error("stopping %s failed: %r", part.name, result)
        for part in begun:
            try:
                await part.close()
            except Exception:
                log.exception("%s could not be closed", part.name)
