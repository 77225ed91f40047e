"""What an operator has suspended. Stored under ``meta/suspended/``.

The mail of a suspended tenant or user is neither accepted nor sent. Mail of a suspended zone, to a suspended provider or
domain, or from a suspended address is accepted and waits. Mail that is leased for a tenant or user is held, message by message, so that a
suspension costs nothing for mail that is not due.
"""

import asyncio
from collections.abc import Callable, Container
from typing import NamedTuple

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.events.schema import Event
from zonemta_py.queue.batch import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT
from zonemta_py.storage.interface import Store

USER = "user:"  # in front of the name of a user; tenants have no colon in theirs
SENDING = ("zone:", "provider:", "address:", "domain:")  # in front of the names of what does not send


def suspended_part(suspended: Container[str], tenant: str, user: str) -> str:
    """Who of tenant and user is suspended, such as ``User ann``; empty for neither."""
    if tenant in suspended:
        return f"Tenant {tenant}"
    return f"User {user}" if user and USER + user in suspended else ""


class Suspension(NamedTuple):
    """``meta/suspended/NAME``: since when (unix ms), why, and until when; 0: until it is resumed."""

    version: int
    since_ms: int
    reason: str
    until_ms: int = 0


_read = unpacker(Suspension)


class Suspensions(Container[str]):
    """What is suspended in a queue: tenants by name, others by a word, a colon and their name. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._commits = commits
        self._now = now
        prefix = keys.META_SUSPENDED
        rows = store.scan(prefix, keys.end_of(prefix))
        self._by_name = {key[len(prefix) :].decode(): _read(value) for key, value in rows}
        self._over: set[str] = set()  # still stored
        self.changed = asyncio.Event()
        self.version = 0  # greater after each change

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def names(self) -> list[str]:
        """All that is suspended."""
        return sorted(name for name in list(self._by_name) if name in self)

    def submitters(self) -> list[str]:
        """The tenants and users that are suspended."""
        return [name for name in self.names() if not name.startswith(SENDING)]

    def sending(self) -> list[str]:
        """The zones, providers, addresses and domains that are suspended."""
        return [name for name in self.names() if name.startswith(SENDING)]

    def get(self, name: str) -> Suspension | None:
        """The suspension of ``name``, if it is not over."""
        found = self._by_name.get(name)
        if found is None or not 0 < found.until_ms <= self._now():
            return found
        del self._by_name[name]
        self._over.add(name)
        self._has_changed()
        return None

    async def suspend(
        self, name: str, reason: str, until_ms: int = 0, event: Event | None = None
    ) -> None:
        """Suspend; the time of an earlier suspension stays. ``event`` is recorded. Raises QueueUnavailable."""
        before = self.get(name)
        found = Suspension(FORMAT, before.since_ms if before else self._now(), reason, until_ms)
        batch = self._batch(event)
        batch.put(keys.META_SUSPENDED + name.encode(), pack(found))
        self._by_name[name] = found  # before it is on disk: it applies from the next lease on
        self._has_changed()
        await self._commits.submit(batch)

    async def resume(self, name: str, event: Event | None = None) -> None:
        """End a suspension; ``event`` is recorded. Raises QueueUnavailable."""
        batch = self._batch(event)
        batch.delete(keys.META_SUSPENDED + name.encode())
        await self._commits.submit(batch)
        self._by_name.pop(name, None)
        self._has_changed()

    def _batch(self, event: Event | None) -> WriteBatch:
        batch = WriteBatch()
        for name in self._over:
            batch.delete(keys.META_SUSPENDED + name.encode())
        self._over.clear()
        if event is not None:
            batch.record(event)
        return batch

    def _has_changed(self) -> None:
        self.version += 1
        self.changed.set()
