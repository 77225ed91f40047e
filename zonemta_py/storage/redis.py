"""The store in Redis: an index of keys, a hash of values, every batch one script.

Keys of a partition (``RedisKeys``; the braces put them into one slot of a cluster)::

    {PREFIX:NAME}:keys     a sorted set whose members are the keys, all with score 0
    {PREFIX:NAME}:values   a hash from key to value
    {PREFIX:NAME}:lease    the token of the relay that has the partition; Redis lets it expire
    {PREFIX:NAME}:written  the number of batches that relay has written
    PREFIX:notices         a list of names of partitions that were released with mail in them: hints

Life of a partition: lease acquired ─▶ loaded ─▶ open ─▶ lease lost, or failed, or closed. The last three are final.

Invariants:

- A batch is one script, which Redis runs as a whole or not at all. It first compares the lease, so that a relay without it writes
  nothing; then the number of the batch, so that a batch that is sent again because its answer was lost is applied once.
- Memory has all keys and small values, and equals the server after each batch (``RemoteBodyStore``). Values of chunks are on the
  server only.
- The value of a removed chunk is freed one batch later: a frozen view may still read it.
- The first write of a script is a DEL: a Redis without free memory would refuse a script that begins with another write, and a
  full queue could not be opened or drained (decision 62).
- With ``durability: sync`` the settings of Redis are checked at the opening and every LOOK_EVERY_S.

Callers: ``storage.open`` makes a ``RedisSharedStorage``, which opens partitions; ``relay.takeover`` asks it for orphans.

Example: the relay ``mx1`` writes batch 7, and the connection breaks before the answer. It sends batch 7 again; the script finds
``written`` = 7 and returns 1 without a change.

Source: redis.io, "Scripting with Lua" (atomicity, memory), "Key eviction" and "Persistence".
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from zonemta_py.config.schema import QueueSettings, RedisSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.core.text import without_secrets
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op, Space
from zonemta_py.storage.remote import LoopThread, RemoteBodyStore
from zonemta_py.storage.shared import MAIL_PREFIXES, PartitionLease

log = logging.getLogger(__name__)


# ---- One partition.

PAGE_KEYS = 1000  # of one request while loading
REMOVED_CHUNKS_MAX = 256  # 16 MiB that Redis keeps without use
LOOK_EVERY_S = 2.0


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
        """Free the values of removed chunks, then close."""
        if self._removed_chunks and not (self._closed or self._failure or self._lease.lost):
            try:
                self._free_chunks()
            except LocalError as exc:
                log.error("%s: removed chunks stay until it is opened again: %s", self._label, exc)
        super().close()


# ---- The partitions of several relays in one Redis.

WAIT_MAX_S = 3.0  # for a notification: less than an answer may take


class RedisSharedStorage:
    """The partitions of several relays in one Redis. Raises LocalError for a Redis that cannot be used."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._prefix = settings.redis.prefix
        self._client = RedisClient(settings.redis, "Redis")
        try:
            self._check(sync=settings.durability == "sync")
        except BaseException:
            self._client.close()
            raise

    def _check(self, *, sync: bool) -> None:
        try:
            self._client.run_once(self._client.commands.ping())
        except LocalError as exc:
            url = without_secrets(self._settings.redis.url)
            raise LocalError(without_secrets(f"queue.redis.url: {url} cannot be used: {exc}")) from exc
        if sync:
            self._client.run(self._client.check_durability())

    def open(self, name: str) -> RedisStore:
        return RedisStore(self._settings, name)

    def orphans(self) -> list[str]:
        return self._client.run(self._orphans())

    async def _orphans(self) -> list[str]:
        found = []
        pattern = f"{{{_escaped(self._prefix)}:*}}:keys"
        async for index in self._client.commands.scan_iter(match=pattern, count=1000):
            name = index.decode()[len(self._prefix) + 2 : -len("}:keys")]
            where = RedisKeys(self._prefix, name)
            lease = await self._client.commands.get(where.lease)
            if lease is None and await self._has_mail(where.index):
                found.append(name)
        return sorted(found)

    async def _has_mail(self, index: str) -> bool:
        for prefix in MAIL_PREFIXES:
            start, stop = b"[" + prefix, b"(" + keys.end_of(prefix)
            if await self._client.commands.zrangebylex(index, start, stop, start=0, num=1):
                return True
        return False

    def wait_for_notification(self, wait_s: float) -> str | None:
        timeout_s = min(max(0.01, wait_s), WAIT_MAX_S)
        notifications = [notifications_key(self._prefix)]
        found = self._client.run_once(self._client.commands.blpop(notifications, timeout=timeout_s))
        return found[1].decode() if found else None

    def close(self) -> None:
        self._client.close()


def _escaped(text: str) -> str:
    """``text`` as a literal in a pattern of SCAN."""
    return "".join(f"\\{c}" if c in "*?[]\\^" else c for c in text)


# ---- The client, and the check that its server is durable; the adapter of redis.

ANSWER_S = 5.0
RETRIES = 6  # after a lost connection: for about three seconds

CLIENT_ERRORS = (RedisError, OSError)


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
        """``run`` for a request that must not wait long: a server that does not answer is not asked again."""
        return self.thread.run(_in_time(work))

    def close(self) -> None:
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


# ---- The lease of a partition.


class RedisLease:
    """The lease of one partition in Redis."""

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
        """Acquire the lease. A new lease numbers its batches from 1."""
        where = [self._where.lease, self._where.written]
        holder = self._client.run(self._acquire(keys=where, args=[token, self._lease_ms, previous]))
        return holder.decode() if holder else None

    def holder(self) -> str | None:
        found = self._client.run_once(self._client.commands.get(self._where.lease))
        return found.decode() if found else None

    def renew(self, token: str) -> bool:
        renewal = self._renew(keys=[self._where.lease], args=[token, self._lease_ms])
        return bool(self._client.run_once(renewal))

    def release(self, token: str, *, mail: bool) -> None:
        released = self._client.run_once(self._release(keys=[self._where.lease], args=[token]))
        if released and mail:
            try:
                self._client.run_once(self._client.commands.rpush(self._notifications, self._name))
            except LocalError as exc:  # no memory is free; others look for mail now and then
                log.warning("other relays are not notified: %s", exc)


# ---- The scripts that change the keys of a partition.
#
# A Redis without free memory refuses a script whose first write could need more. The first write of these
# scripts is a DEL, so that a full queue can be opened and drained; new mail is refused before (decision 62).

# Keys: lease, keys, values, written. Arguments: the token, the number of the batch, how many keys are put,
# how many are removed from the index; then keys and values to put, keys to remove from the index, and
# fields to remove from the hash. Returns 1 when the batch is applied, now or before; 0 for a lost lease;
# -1 for a number out of order.
WRITE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local written = tonumber(redis.call('GET', KEYS[4]) or 0)
if tonumber(ARGV[2]) == written then return 1 end
if tonumber(ARGV[2]) ~= written + 1 then return -1 end
redis.call('DEL', KEYS[4])
redis.call('SET', KEYS[4], ARGV[2])
local at = 5
for _ = 1, tonumber(ARGV[3]) do
  redis.call('ZADD', KEYS[2], 0, ARGV[at])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
  at = at + 2
end
local removed = at + tonumber(ARGV[4])
for i = at, removed - 1 do redis.call('ZREM', KEYS[2], ARGV[i]) end
for i = removed, #ARGV do redis.call('HDEL', KEYS[3], ARGV[i]) end
return 1
"""
# Keys: lease, written. Arguments: the token, milliseconds, a token that is replaced. Returns nil, or the token
# of the holder.
ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return false end
if held and held ~= ARGV[3] then return held end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], 0)
return false
"""
# Key: lease. Arguments: the token, milliseconds. Returns 0 for a lost lease.
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# Key: lease. Argument: the token. Returns 1 when the lease was this relay's.
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisKeys:
    """The names of the keys of one partition."""

    def __init__(self, prefix: str, name: str) -> None:
        self.index = f"{{{prefix}:{name}}}:keys"
        self.values = f"{{{prefix}:{name}}}:values"
        self.lease = f"{{{prefix}:{name}}}:lease"
        self.written = f"{{{prefix}:{name}}}:written"


def notifications_key(prefix: str) -> str:
    """The key of the list of notifications."""
    return f"{prefix}:notices"
