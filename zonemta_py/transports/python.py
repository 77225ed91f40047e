"""Delivery by a Python function of the user, named ``package.module.function`` in the configuration.

The function gets a ``LocalMessage`` and returns a ``Reply``, or None for delivered. A coroutine function runs
on the event loop, any other function in a thread. When it raises, the recipient is tried again later.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor

from zonemta_py.config.references import named_function
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import DELIVERED, LocalMessage

THREADS = 32  # of functions that are not coroutines, in a zone

log = logging.getLogger(__name__)


class PythonTransport:
    """Calls the function ``name`` for each recipient, for at most ``timeout_s``. Raises ConfigError."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._function = named_function(name)
        self._timeout_s = timeout_s
        # Not the threads of the loop: functions that hang keep theirs, and the queue needs those.
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """See ``LocalTransport``; a function that hangs is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def deliver(self, message: LocalMessage) -> Reply:
        """See ``LocalTransport``."""
        await message.begin()
        try:
            async with asyncio.timeout(self._timeout_s):
                returned = await self._call(message)
        except TimeoutError:
            return Reply(451, "4.4.7", f"{self._name} did not return within {self._timeout_s:g} s")
        except Exception as exc:
            log.exception("%s failed on %s", self._name, message.message)
            return Reply(451, "4.3.0", f"{self._name} failed: {type(exc).__name__}")
        if returned is None:
            return DELIVERED
        if not isinstance(returned, Reply):
            text = f"{self._name} returned {type(returned).__name__}, expected a Reply or None"
            return Reply(451, "4.3.5", text)
        if list(map(type, returned)) != [int, str, str]:  # it could not be stored
            return Reply(451, "4.3.5", f"{self._name} returned a malformed Reply: {tuple(returned)}")
        return returned

    async def _call(self, message: LocalMessage) -> object:
        if inspect.iscoroutinefunction(self._function):
            returned: Awaitable[object] = self._function(message)
            return await returned
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=self._name)
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, run, self._function, message
        )
