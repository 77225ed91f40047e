"""Delivery by a Python function of the operator's: ``package.module.function``.

It is called with a ``Parcel`` and returns a ``Reply``, or None for delivered; it may be a coroutine
function, else it runs in a thread. What it raises is a defect of its own: the recipient is tried again.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable

from zonemta_py.config.functions import named_function
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import DELIVERED, Parcel

log = logging.getLogger(__name__)


class Routine:
    """Calls ``function``, which may take ``timeout_s``."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._function = named_function(name)
        self._timeout_s = timeout_s

    def close(self) -> None:
        """As ``LocalTransport``: nothing rests here."""

    async def deliver(self, parcel: Parcel) -> Reply:
        """As ``LocalTransport``."""
        await parcel.begin()
        try:
            async with asyncio.timeout(self._timeout_s):
                said = await self._call(parcel)
        except TimeoutError:
            return Reply(451, "4.4.7", f"{self._name} was not done after {self._timeout_s:g} s")
        except Exception as exc:
            log.exception("%s failed on %s", self._name, parcel.message)
            return Reply(451, "4.3.0", f"{self._name} failed: {type(exc).__name__}")
        if said is None:
            return DELIVERED
        if isinstance(said, Reply):
            return said
        return Reply(
            451, "4.3.5", f"{self._name} returned {type(said).__name__}, expected a Reply or None"
        )

    async def _call(self, parcel: Parcel) -> object:
        if inspect.iscoroutinefunction(self._function):
            said: Awaitable[object] = self._function(parcel)
            return await said
        return await asyncio.to_thread(self._function, parcel)
