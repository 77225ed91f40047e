"""Delivery by a Python function of the user, named ``package.module.function`` in the configuration.

The function gets a ``LocalMessage`` and returns a ``Reply``, or None for delivered. A coroutine function runs
on the event loop, any other function in a thread. When it raises, the recipient is tried again later.
"""

import asyncio
import contextvars
import inspect
import logging
from concurrent.futures import Future, ThreadPoolExecutor

from zonemta_py.config.references import named_function
from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.interface import DELIVERED, LocalMessage, Unanswered

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
        in_thread = None if inspect.iscoroutinefunction(self._function) else self._submit(message)
        try:
            async with asyncio.timeout(self._timeout_s):
                if in_thread is None:
                    returned = await self._function(message)
                else:
                    returned = await asyncio.wrap_future(in_thread)
        except TimeoutError:
            if in_thread is not None and in_thread.cancel():
                return Reply(451, "4.4.7", f"{self._name} was not called: its earlier calls all hang")
            text = f"{self._name} did not return within {self._timeout_s:g} s"
            return Unanswered(451, "4.4.7", text)
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

    def _submit(self, message: LocalMessage) -> Future[object]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=self._name)
        run = contextvars.copy_context().run
        return self._threads.submit(run, self._function, message)
