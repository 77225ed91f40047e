"""Submission keys: what was accepted of a message that a client submits again after a lost 250.

``submitted/DIGEST`` is committed in the message's own batch. A key is held from ``acquire``
until that batch is on disk or the session gives up, so that of two repeats at once only one is new.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from hashlib import blake2b

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, SubmissionRecord, read_submitted
from zonemta_py.queue.group_commit import GroupCommit
from zonemta_py.queue.slices import row_slices
from zonemta_py.storage.interface import Store

DIGEST_BYTES = 16
SWEEP_EVERY_S = 3600.0

log = logging.getLogger(__name__)


def submission_digest(owner: str, key: str) -> str:
    """The digest (hex) of a submission key of ``owner``, see ``Origin``."""
    return blake2b(f"{owner}\0{key}".encode(), digest_size=DIGEST_BYTES).hexdigest()


class KeyLookup(CommitFuture):
    """What is known of a key, once it is known.

    ``busy``: a session is at it. ``known``: what was accepted under it within its window.
    """

    __slots__ = ("busy", "known")

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.known: SubmissionRecord | None = None

    def answer(self, busy: bool, known: SubmissionRecord | None) -> None:
        """It is known now."""
        self.busy, self.known = busy, known
        self.set_result()


class SubmissionKeys:
    """The submission keys of a queue. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._store = store
        self._commits = commits
        self._now = now
        self._under_way: set[str] = set()

    def lookup(self, digest: str) -> KeyLookup:
        """What is known of a key, which stays free."""
        lookup = KeyLookup()
        busy = digest in self._under_way
        lookup.answer(busy, None if busy else self._find(digest))
        return lookup

    def acquire(self, digest: str) -> KeyLookup:
        """Take the key for a session unless another has it. ``release`` follows, or the commit does it."""
        lookup = self.lookup(digest)
        if not lookup.busy:
            self._under_way.add(digest)
        return lookup

    def release(self, digest: str) -> None:
        """The session is done with the key."""
        self._under_way.discard(digest)

    def _find(self, digest: str) -> SubmissionRecord | None:
        value = self._store.get(keys.submitted_key(digest))
        if value is None:
            return None
        found = read_submitted(value)
        return found if found.expires_ms > self._now() else None

    async def run(self) -> None:
        """Remove keys whose window is over, now and every hour."""
        while True:
            try:
                await self._remove_old()
            except QueueCorrupt as exc:
                log.critical("old submission keys are not removed, repair the queue: %s", exc)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _remove_old(self) -> None:
        async for rows in row_slices(self._store, keys.SUBMITTED):
            batch = WriteBatch()
            for key, value in rows:
                digest = key[len(keys.SUBMITTED) :].decode()
                if digest not in self._under_way and read_submitted(value).expires_ms <= self._now():
                    batch.delete(key)
            if batch.ops:
                await self._commits.submit(batch)


def extended(
    known: SubmissionRecord | None, message: str, addresses: Iterable[str], expires_ms: int
) -> SubmissionRecord:
    """``known`` with ``addresses`` accepted by ``message``; a new key counts until ``expires_ms``."""
    added = b"".join(_digest(address) for address in addresses)
    if known is not None:
        return known._replace(recipients=known.recipients + added)
    return SubmissionRecord(FORMAT, expires_ms, message, added)


def not_covered(known: SubmissionRecord | None, addresses: Iterable[str]) -> list[str]:
    """Those of ``addresses`` that were not accepted under the key."""
    if known is None:
        return list(addresses)
    data = known.recipients
    covered = {data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)}
    return [address for address in addresses if _digest(address) not in covered]


def _digest(address: str) -> bytes:
    return blake2b(address.encode(), digest_size=DIGEST_BYTES).digest()
