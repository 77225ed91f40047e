"""Every wait of a test has a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 30.0


async def until(condition: Callable[[], object], what: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Return once ``condition()`` holds; fail when it does not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"timed out waiting for {what or condition}"
        await asyncio.sleep(0.01)


async def eventually(
    ask: Callable[[], Awaitable[bool]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """As ``until``, for a condition that is itself awaited."""
    end = time.monotonic() + deadline_s
    while not await ask():
        assert time.monotonic() < end, f"timed out waiting for {what}"
