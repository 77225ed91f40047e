"""The store in Redis: an index of keys, a hash of values, every batch one script (``redis_scripts``).

The script first checks that the writer has the lease, and that the batch is the next one: a batch that is sent
again because its answer was lost is applied once.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op, Space
from zonemta_py.storage.lease import PartitionLease
from zonemta_py.storage.redis_client import CLIENT_ERRORS, RedisClient
from zonemta_py.storage.redis_scripts import ACQUIRE, RELEASE, RENEW, WRITE, RedisKeys, notifications_key
from zonemta_py.storage.remote import RemoteBodyStore

PAGE_KEYS = 1000  # of one request while loading
REMOVED_CHUNKS_MAX = 256  # 16 MiB that Redis may hold in vain
LOOK_EVERY_S = 2.0

log = logging.getLogger(__name__)


class RedisLease:
    """The lease of one partition in Redis; see ``LeaseBackend``."""

    def __init__(self, client: RedisClient, prefix: str, name: str, lease_s: float) -> None:
        self._client = client
        self._name = name
        self._notifications = notifications_key(prefix)
        self._where = RedisKeys(prefix, name)
        self._lease_ms = int(lease_s * 1000)
        self._acquire = client.commands.register_script(ACQUIRE)
        self._renew = client.commands.register_script(RENEW)
        self._release = client.commands.register_script(RELEASE)

    def try_acquire(self, token: str, previous: str = "") -> str | None:
        """See ``LeaseBackend``. A new lease begins to count its batches at 1."""
        where = [self._where.lease, self._where.written]
        holder = self._client.run(self._acquire(keys=where, args=[token, self._lease_ms, previous]))
        return holder.decode() if holder else None

    def holder(self) -> str | None:
        """See ``LeaseBackend``."""
        found = self._client.run_once(self._client.commands.get(self._where.lease))
        return found.decode() if found else None

    def renew(self, token: str) -> bool:
        """See ``LeaseBackend``."""
        renewal = self._renew(keys=[self._where.lease], args=[token, self._lease_ms])
        return bool(self._client.run_once(renewal))

    def release(self, token: str, *, mail: bool) -> None:
        """See ``LeaseBackend``."""
        released = self._client.run_once(self._release(keys=[self._where.lease], args=[token]))
        if released and mail:
            try:
                self._client.run_once(self._client.commands.rpush(self._notifications, self._name))
            except LocalError as exc:  # no memory is free; others look for mail now and then
                log.warning("other relays are not notified: %s", exc)


class RedisStore(RemoteBodyStore):
    """One partition in Redis. Raises QueueLocked, LocalError."""

    def __init__(self, settings: QueueSettings, name: str) -> None:
        label = f"Redis partition '{name}'"
        prefix, lease_s = settings.redis.prefix, settings.shared.lease
        self._client = RedisClient(settings.redis, label)
        self._where = RedisKeys(prefix, name)
        lease = PartitionLease(label, lease_s, RedisLease(self._client, prefix, name, lease_s))
        super().__init__(name, label, self._client.thread, lease, f"{settings.redis.url} {prefix}")
        self._script = self._client.commands.register_script(WRITE)
        self._written = 0  # batches
        self._removed_chunks: set[bytes] = set()  # out of the index, still in the hash
        self._space: Space | None = None
        self._open()
        self._client.thread.start(self._keep_looking(durable=settings.durability == "sync"))

    def _disconnect(self) -> None:
        self._client.close()

    def space(self) -> Space | None:
        """Return the memory of the server as it was some seconds ago; None when it has no limit."""
        return self._space

    async def _keep_looking(self, *, durable: bool) -> None:
        """Look at memory and settings of the server, which may change while it runs."""
        problem = ""
        while True:
            try:
                self._space = await self._client.space()
                durable = durable and await self._client.check_durability()
                problem = ""
            except (LocalError, *CLIENT_ERRORS) as exc:
                if str(exc) != problem:
                    log.critical("%s: %s", self._label, exc)
                problem = str(exc)
            await asyncio.sleep(LOOK_EVERY_S)

    # ---- reading

    def _load(self) -> None:
        start = b"-"
        while page := self._page(start):
            self._apply(self._values_of(page), b"")
            start = b"(" + page[-1]
        commands, where = self._client.commands, self._where
        if self._client.run(commands.hlen(where.values)) > self._client.run(commands.zcard(where.index)):
            in_hash = self._client.run(commands.hkeys(where.values))
            self._removed_chunks = {key for key in in_hash if key not in self._values}

    def _page(self, start: bytes) -> list[bytes]:
        request = self._client.commands.zrangebylex(
            self._where.index, start, b"+", start=0, num=PAGE_KEYS
        )
        found: list[bytes] = self._client.run(request)
        return found

    def _values_of(self, page: list[bytes]) -> Iterator[Op]:
        """The keys of a page: small ones with their values, chunks without."""
        small = [key for key in page if not keys.is_chunk(key)]
        yield from ((key, b"") for key in page if keys.is_chunk(key))
        values = (
            self._client.run(self._client.commands.hmget(self._where.values, small)) if small else ()
        )
        for key, value in zip(small, values, strict=True):
            if value is None:
                log.critical("%s: %r is in the index and has no value", self._label, key)
            yield key, value

    async def _read_chunk(self, key: bytes, reference: bytes) -> bytes | None:
        value: bytes | None = await self._client.commands.hget(self._where.values, key)
        return value

    # ---- writing

    def _commit(self, batch: list[Op]) -> None:
        """Send ``batch``; on a broken connection it is sent again under the same number.

        The values of removed chunks go with the next batch: until a frozen view is closed, memory still has
        their keys, and the view may read them.
        """
        put = {key: value for key, value in batch if value is not None}
        removed = [key for key, value in batch if value is None]
        small = [key for key in removed if not keys.is_chunk(key)]
        self._send(put, removed, [*small, *(self._removed_chunks - put.keys())])
        self._apply(batch, b"")
        self._removed_chunks = {key for key in removed if keys.is_chunk(key)}
        if len(self._removed_chunks) > REMOVED_CHUNKS_MAX:
            self._free_chunks()

    def _send(self, put: dict[bytes, bytes], removed: list[bytes], freed: list[bytes]) -> None:
        where = self._where
        pairs = [part for pair in put.items() for part in pair]
        args: list[Any] = [self._lease.token, self._written + 1, len(put), len(removed)]
        request = self._script(
            keys=[where.lease, where.index, where.values, where.written],
            args=[*args, *pairs, *removed, *freed],
        )
        if self._client.run(request) != 1:
            self._lease.mark_lost()
            self._lease.check()
        self._written += 1

    def _free_chunks(self) -> None:
        self._send({}, [], list(self._removed_chunks))
        self._removed_chunks.clear()

    def close(self) -> None:
        """See ``RemoteBodyStore.close``."""
        if self._removed_chunks and not (self._closed or self._failure or self._lease.lost):
            try:
                self._free_chunks()
            except LocalError as exc:
                log.error("%s: removed chunks stay until it is opened again: %s", self._label, exc)
        super().close()
