"""Suspended tenants and users: their mail is neither accepted nor sent. Stored under ``meta/suspended/``.

Mail that is leased for one is held, message by message, so that a suspension costs nothing for mail that is not due.
"""

import asyncio
from collections.abc import Callable, Container
from typing import NamedTuple

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.queue.batch import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT
from zonemta_py.storage.interface import Store

USER = "user:"  # in front of the name of a user; tenants have no colon in theirs


def suspended_part(suspended: Container[str], tenant: str, user: str) -> str:
    """Who of tenant and user is suspended, such as ``User ann``; empty for neither."""
    if tenant in suspended:
        return f"Tenant {tenant}"
    return f"User {user}" if user and USER + user in suspended else ""


class Suspension(NamedTuple):
    """``meta/suspended/NAME``, a tenant or USER and a user: since when (unix ms), and why."""

    version: int
    since_ms: int
    reason: str


_read = unpacker(Suspension)


class Suspensions(Container[str]):
    """What is suspended in a queue: tenants by name, users by USER and name. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._commits = commits
        self._now = now
        prefix = keys.META_SUSPENDED
        rows = store.scan(prefix, keys.end_of(prefix))
        self._by_name = {key[len(prefix) :].decode(): _read(value) for key, value in rows}
        self.changed = asyncio.Event()

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def names(self) -> list[str]:
        """All that is suspended."""
        return sorted(self._by_name)

    def get(self, name: str) -> Suspension | None:
        """The suspension of ``name``."""
        return self._by_name.get(name)

    async def suspend(self, name: str, reason: str) -> None:
        """Suspend a tenant or user; the time of an earlier suspension stays. Raises QueueUnavailable."""
        before = self._by_name.get(name)
        found = Suspension(FORMAT, before.since_ms if before else self._now(), reason)
        batch = WriteBatch()
        batch.put(keys.META_SUSPENDED + name.encode(), pack(found))
        self._by_name[name] = found  # before it is on disk: it applies from the next lease on
        self.changed.set()
        await self._commits.submit(batch)

    async def resume(self, name: str) -> None:
        """End a suspension. Raises QueueUnavailable."""
        batch = WriteBatch()
        batch.delete(keys.META_SUSPENDED + name.encode())
        await self._commits.submit(batch)
        self._by_name.pop(name, None)
        self.changed.set()
