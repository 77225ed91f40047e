"""The adapter of redis: a client with retries, and the check that its server is durable."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from zonemta_py.config.schema import RedisSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.core.text import without_secrets
from zonemta_py.storage.interface import Space
from zonemta_py.storage.loop_thread import LoopThread

ANSWER_S = 5.0
RETRIES = 6  # after a lost connection: for about three seconds

CLIENT_ERRORS = (RedisError, OSError)

log = logging.getLogger(__name__)

T = TypeVar("T")


class RedisClient:
    """A client whose event loop runs in a thread of its own. ``label`` is the prefix of its error messages.

    ``commands`` has Redis's commands as coroutines, for ``run`` or ``thread.wait``.
    """

    def __init__(self, settings: RedisSettings, label: str) -> None:
        """Raises LocalError for an invalid URL; connects with the first command."""
        try:
            # Any: its commands are annotated for the blocking and the asynchronous client at once.
            self.commands: Any = redis.asyncio.Redis.from_url(
                settings.url,
                socket_timeout=ANSWER_S,
                socket_connect_timeout=ANSWER_S,
                retry=Retry(ExponentialBackoff(cap=1, base=0.05), RETRIES),
                retry_on_error=[RedisConnectionError, RedisTimeoutError],
            )
        except ValueError as exc:
            raise LocalError(without_secrets(f"queue.redis.url: {settings.url} : {exc}")) from exc
        self.thread = LoopThread(label, label, CLIENT_ERRORS)

    def run(self, work: Awaitable[T]) -> T:
        """Return the answer, blocking. Raises LocalError."""
        return self.thread.run(work)

    def run_once(self, work: Awaitable[T]) -> T:
        """Like ``run``, for what must not wait long: a server that does not answer is not asked again."""
        return self.thread.run(_in_time(work))

    def close(self) -> None:
        """Disconnect."""
        self.thread.close(self.commands.aclose)

    async def space(self) -> Space | None:
        """The memory of this Redis; None when it has no limit. Raises RedisError."""
        memory = await self.commands.info("memory")
        total = int(memory["maxmemory"])
        return Space(total - int(memory["used_memory"]), total) if total else None

    async def check_durability(self) -> bool:
        """Raise LocalError unless Redis confirms a write after its disk has it, and keeps every key.

        Returns whether Redis tells its settings.
        """
        try:
            found = {
                **await self.commands.config_get("*append*"),
                **await self.commands.config_get("maxmemory*"),
            }
        except ResponseError as exc:
            log.warning(
                "queue.redis: cannot tell whether Redis writes to disk before it answers: %s", exc
            )
            return False
        if (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
            raise LocalError(
                "queue.redis: this Redis answers before a write is on its disk, so accepted mail can be lost: "
                "set appendonly yes and appendfsync always there, or queue.durability: none here"
            )
        if found.get("no-appendfsync-on-rewrite") == "yes":
            raise LocalError(
                "queue.redis: this Redis answers before a write is on its disk while it rewrites its log: set "
                "no-appendfsync-on-rewrite no there, or queue.durability: none here"
            )
        if found.get("maxmemory") != "0" and found.get("maxmemory-policy") != "noeviction":
            raise LocalError(
                "queue.redis: this Redis removes keys when its memory is full: set maxmemory-policy noeviction "
                "there, or queue.durability: none here"
            )
        return True


async def _in_time(work: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(work, ANSWER_S)
    except TimeoutError:
        raise TimeoutError(f"no answer within {ANSWER_S:.0f} s") from None
