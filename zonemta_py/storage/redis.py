"""A store in Redis: an ordered index of keys, a hash of values, every batch one script (``redis_layout``).

The script of a batch first looks whether the lease is still the writer's, and whether it is the next batch: one
that is sent again after an answer was lost is applied once. The one door to redis.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op
from zonemta_py.storage.loop_thread import LoopThread
from zonemta_py.storage.partitions import MAIL, new_token
from zonemta_py.storage.redis_scripts import GIVE_BACK, READ, RENEW, TAKE, WRITE, Part

ANSWER_S = 5.0
NOTICE_S = 3.0  # of one wait, less than an answer may take
PAGE = 128  # keys of one read
RETRIES = 6  # of a connection that broke: about three seconds

log = logging.getLogger(__name__)

T = TypeVar("T")


class RedisSharedStorage:
    """The parts in one Redis."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._prefix = settings.redis.prefix
        self._thread = LoopThread("redis")
        try:
            self._client = _client(settings)
        except LocalError:
            self._thread.close()
            raise
        try:
            self._thread.run(_check(self._client, sync=settings.durability == "sync"))
        except (RedisError, OSError) as exc:
            self.close()
            raise LocalError(f"queue.redis.url: {settings.redis.url} cannot be used: {exc}") from exc
        except BaseException:
            self.close()
            raise

    def open(self, name: str) -> "RedisStore":
        """As ``SharedStorage``."""
        return RedisStore(self._settings, name)

    def orphans(self) -> list[str]:
        """As ``SharedStorage``."""
        return self._run(self._orphans())

    async def _orphans(self) -> list[str]:
        found = []
        pattern = f"{{{_escaped(self._prefix)}:*}}:keys"
        async for index in self._client.scan_iter(match=pattern, count=1000):
            name = index.decode()[len(self._prefix) + 2 : -len("}:keys")]
            part = Part(self._prefix, name)
            if await self._client.get(part.lease) is None and await _has_mail(self._client, part):
                found.append(name)
        return sorted(found)

    def notice(self, wait_s: float) -> str | None:
        """As ``SharedStorage``."""
        found = self._run(
            self._client.blpop([f"{self._prefix}:notices"], timeout=min(max(0.01, wait_s), NOTICE_S))
        )
        if not found:
            return None
        name = found[1]
        return name if isinstance(name, str) else name.decode()

    def _run(self, work: Awaitable[T]) -> T:
        try:
            return self._thread.run(work)
        except (RedisError, OSError) as exc:
            raise LocalError(f"Redis: {exc}") from exc

    def close(self) -> None:
        """As ``SharedStorage``."""
        _end(self._thread, self._client)


class RedisStore:
    """One part, leased until ``close``. A write raises QueueUnavailable once the lease is lost."""

    def __init__(self, settings: QueueSettings, name: str) -> None:
        self.name = name
        self._prefix = settings.redis.prefix
        self._part = Part(self._prefix, name)
        self._lease_ms = int(settings.shared.lease * 1000)
        self._token = new_token()
        self._lock = RLock()  # a write waits for a frozen view
        self._written = 0
        self._failure = ""  # why nothing is written any more
        self._closed = False
        self._client = client = _client(settings)
        self._thread = LoopThread(f"redis-{name}")
        self._write = client.register_script(WRITE)
        self._read = client.register_script(READ)
        self._renew = client.register_script(RENEW)
        try:
            self._renewal = self._thread.run(self._take())
        except BaseException as exc:
            _end(self._thread, client)
            if isinstance(exc, (RedisError, OSError)):
                raise LocalError(f"Redis: {exc}") from exc
            raise

    async def _take(self) -> "asyncio.Task[None]":
        take = self._client.register_script(TAKE)
        keys_of = [self._part.lease, self._part.written]
        held = await take(keys=keys_of, args=[self._token, self._lease_ms])
        if held:
            holder = held.decode().rpartition(":")[0]
            raise QueueLocked(f"Redis part '{self.name}': in use by {holder}", holder)
        return asyncio.create_task(self._keep_renewing())

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            try:
                if not await self._renew(keys=[self._part.lease], args=[self._token, self._lease_ms]):
                    log.critical("Redis part '%s': the lease is lost, another relay has it", self.name)
                    return
            except (RedisError, OSError) as exc:
                log.error("Redis part '%s': the lease could not be renewed: %s", self.name, exc)

    # ---- reading

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """As ``View``."""
        value: bytes | None = self._ask(self._client.hget(self._part.values, key))
        return value

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As ``View``."""
        part = self._part
        while True:
            args: list[Any] = [b"[" + start, b"(" + stop, PAGE]
            found, values = self._ask(self._read(keys=[part.index, part.values], args=args))
            for key, value in zip(found, values, strict=True):
                if value is not None:
                    yield key, value
            if len(found) < PAGE:
                return
            start = found[-1] + b"\x00"

    def keys(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """As ``View``."""
        while True:
            found = self._ask(
                self._client.zrangebylex(self._part.index, b"[" + start, b"(" + stop, start=0, num=PAGE)
            )
            yield from found
            if len(found) < PAGE:
                return
            start = found[-1] + b"\x00"

    def _ask(self, work: Awaitable[Any]) -> Any:
        """An answer. A read that failed is not the same as damage: nothing is written on the strength of it."""
        try:
            return self._thread.run(work)
        except (RedisError, OSError, LocalError) as exc:
            self._failure = f"Redis part '{self.name}' cannot be read: {exc}"
            raise QueueCorrupt(self._failure) from exc

    @contextmanager
    def frozen(self) -> "Iterator[RedisStore]":
        """One moment: nobody else writes here, and our own writes wait."""
        with self._lock:
            yield self

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> dict[bytes, bytes | None]:
        """What each key is in the end."""
        return dict(ops)

    def write(self, batch: dict[bytes, bytes | None]) -> None:
        """As ``Store``; on a broken connection the batch is sent again under its number."""
        puts: list[Any] = []
        gone: list[bytes] = []
        for key, value in batch.items():
            if value is None:
                gone.append(key)
            else:
                puts += (key, value)
        if self._failure:
            raise QueueUnavailable(self._failure)
        args = [self._token, self._written + 1, len(puts) // 2, *puts, *gone]
        part = self._part
        where = [part.lease, part.index, part.values, part.written]
        try:
            with self._lock:
                done = self._thread.run(self._write(keys=where, args=args))
        except (RedisError, OSError, LocalError) as exc:
            self._failure = f"Redis part '{self.name}': {exc}"
            raise QueueUnavailable(self._failure) from exc
        if done != 1:
            self._failure = f"Redis part '{self.name}': the lease is lost, another relay has it"
            raise QueueUnavailable(self._failure)
        self._written += 1

    def compact(self) -> None:
        """Nothing to do: removed keys take no room."""

    def size_bytes(self) -> int:
        """What Redis says its memory is."""
        return sum(
            self._ask(self._client.memory_usage(key)) or 0
            for key in (self._part.index, self._part.values)
        )

    def is_behind(self) -> bool:
        """Never: nothing is put off."""
        return False

    def is_remote(self) -> bool:
        """Everything is."""
        return True

    def close(self) -> None:
        """Give the lease back, and say so when there is mail left. Closed already, it is nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.run(self._leave())
        except (RedisError, OSError) as exc:
            log.error("Redis part '%s': its lease runs out by itself: %s", self.name, exc)
        self._thread.close()

    async def _leave(self) -> None:
        self._renewal.cancel()
        give_back = self._client.register_script(GIVE_BACK)
        try:
            ours = await give_back(keys=[self._part.lease], args=[self._token])
            if ours and await _has_mail(self._client, self._part):
                await self._client.rpush(f"{self._prefix}:notices", self.name)
        finally:
            await self._client.aclose()


def _end(thread: LoopThread, client: "redis.asyncio.Redis") -> None:
    thread.run(client.aclose())
    thread.close()


def _client(settings: QueueSettings) -> "redis.asyncio.Redis":
    """Raises LocalError for a URL that is none."""
    broken = [RedisConnectionError, RedisTimeoutError]
    retry = Retry(ExponentialBackoff(cap=1, base=0.05), RETRIES)
    try:
        client: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            settings.redis.url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, retry=retry, retry_on_error=broken
        )  # fmt: skip
    except ValueError as exc:
        raise LocalError(f"queue.redis.url: {settings.redis.url}: {exc}") from exc
    return client


async def _check(client: "redis.asyncio.Redis", *, sync: bool) -> None:
    """The server is there, and when it is to be trusted with mail, answers after the disk has it."""
    await client.ping()
    if not sync:
        return
    try:
        found = {**await client.config_get("*append*"), **await client.config_get("maxmemory*")}
    except ResponseError as exc:
        log.warning(
            "queue.redis: whether Redis writes to disk before it answers cannot be seen: %s", exc
        )
        return
    if (found.get("appendonly"), found.get("appendfsync")) != ("yes", "always"):
        raise LocalError(
            "queue.redis: this Redis answers before its disk has a write, so that accepted mail can be lost: "
            "set appendonly yes and appendfsync always there, or queue.durability: none here"
        )
    if found.get("no-appendfsync-on-rewrite") == "yes":
        raise LocalError(
            "queue.redis: this Redis answers before its disk has a write while it rewrites its log: set "
            "no-appendfsync-on-rewrite no there, or queue.durability: none here"
        )
    if found.get("maxmemory") != "0" and str(found.get("maxmemory-policy")).startswith("allkeys"):
        raise LocalError(
            "queue.redis: this Redis throws keys away when its memory is full: set maxmemory-policy noeviction "
            "there, or queue.durability: none here"
        )


async def _has_mail(client: "redis.asyncio.Redis", part: Part) -> bool:
    for prefix in MAIL:
        if await client.zrangebylex(
            part.index, b"[" + prefix, b"(" + keys.end_of(prefix), start=0, num=1
        ):
            return True
    return False


def _escaped(text: str) -> str:
    """``text`` in a pattern of SCAN."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in text)
