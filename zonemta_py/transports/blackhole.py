"""A transport that delivers to nobody: for tests, and for zones whose mail is not to go anywhere."""

import asyncio

from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import Parcel

GONE = Reply(250, "2.0.0", "into the black hole")


class Blackhole:
    """Reads every message to its end and forgets it, after ``latency_s``."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s

    def close(self) -> None:
        """As ``LocalTransport``: nothing rests here."""

    async def deliver(self, parcel: Parcel) -> Reply:
        """As ``LocalTransport``."""
        async for _ in parcel.body():
            pass
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        await parcel.begin()
        return GONE
