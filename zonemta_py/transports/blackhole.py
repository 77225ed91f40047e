"""A transport that discards every message, for tests and for zones whose mail must not leave."""

import asyncio

from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import LocalMessage

DISCARDED = Reply(250, "2.0.0", "into the black hole")


class BlackholeTransport:
    """Reads every message to its end, waits ``latency_s`` and discards it."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s

    def close(self) -> None:
        """See ``LocalTransport``; there is nothing to release."""

    async def deliver(self, message: LocalMessage) -> Reply:
        """See ``LocalTransport``."""
        async for _ in message.body():
            pass
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        await message.begin()
        return DISCARDED
