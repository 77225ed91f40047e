"""Submission keys: what was accepted of a message that a client submits again after a lost 250.

``submitted/KEY`` is committed in the first message's own batch; ``submitted/KEY/CONTENT`` and, for each recipient,
``submitted/KEY/CONTENT/RECIPIENT`` in that of the message that they are about. The parts are digests. A key is held from
``acquire`` until that batch is on disk or the session gives up, so that of two repeats at once only one is new.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.commit import CommitFuture, GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, SubmissionRecord, read_submitted
from zonemta_py.queue.upkeep.cleanup import row_slices
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


DIGEST_BYTES = 16
SWEEP_EVERY_S = 3600.0


def submission_digest(owner: str, key: str) -> str:
    """The digest (hex) of a submission key of ``owner``, see ``Origin``."""
    return blake2b(f"{owner}\0{key}".encode(), digest_size=DIGEST_BYTES).hexdigest()


class KeyQuestion(NamedTuple):
    """A key, by its ``digest``; a message of which content is under it, and which of ``addresses`` have that.

    ``former``: the digest by which versions before this one knew the key, if it is another one. ``content`` is empty
    while it is not known.
    """

    digest: str
    former: str = ""
    content: str = ""
    addresses: tuple[str, ...] = ()


class KnownKey(NamedTuple):
    """The messages that were accepted under a key within its window.

    ``message``: the first. ``is_other``: none had the content that was asked for. ``expires_ms``: until when a message of
    that content counts, 0 if there is none. ``messages``: those that the addresses have, "" for one that has none.
    """

    message: str
    is_other: bool
    expires_ms: int
    messages: tuple[str, ...]


class KeyUse(NamedTuple):
    """The entry that a message puts under its key. ``other``: the first message that was accepted under it, with other content; or empty.

    ``message``: the id that the client is given. ``is_new``: nothing is known of the key; ``is_first``: of the content.
    """

    digest: str
    content: str
    message: str
    expires_ms: int
    addresses: tuple[str, ...]
    is_new: bool
    is_first: bool
    other: str = ""

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values for the batch of the message."""
        value = pack(SubmissionRecord(FORMAT, self.expires_ms, self.message, b""))
        if self.is_new:
            yield keys.submitted_key(self.digest), value
        if self.is_first:
            yield keys.submitted_key(self.digest, self.content), value
        for address in self.addresses:
            yield keys.submitted_key(self.digest, self.content, _digest(address).hex()), value


class KeyLookup(CommitFuture):
    """The answer about a key, once it is known.

    ``busy``: a session is at it. ``known``: what was accepted under it within its window.
    """

    __slots__ = ("busy", "known")

    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.known: KnownKey | None = None

    def answer(self, busy: bool, known: KnownKey | None) -> "KeyLookup":
        """It is known now."""
        self.busy, self.known = busy, known
        self.finish()
        return self


class SubmissionKeys:
    """The submission keys of a queue. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._store = store
        self._commits = commits
        self._now = now
        self._under_way: set[str] = set()

    def lookup(self, question: KeyQuestion) -> KeyLookup:
        """The entry of a key, which stays free."""
        busy = question.digest in self._under_way
        return KeyLookup().answer(busy, None if busy else self._find(question))

    def acquire(self, question: KeyQuestion) -> KeyLookup:
        """Take the key for a session unless another has it. ``release`` follows, or the commit does it."""
        lookup = self.lookup(question)
        if not lookup.busy:
            self._under_way.add(question.digest)
        return lookup

    def compare(self, question: KeyQuestion) -> KeyLookup:
        """The entry of a key that the session has acquired."""
        return KeyLookup().answer(False, self._find(question))

    def release(self, digest: str) -> None:
        """The session is done with the key."""
        self._under_way.discard(digest)

    def _find(self, question: KeyQuestion) -> KnownKey | None:
        digest, content = question.digest, question.content
        first = self._read(digest) or (self._read(question.former) if question.former else None)
        same = self._read(digest, content) if content else None
        if first is None and same is None:
            return None
        before = _recipients(first)  # of an earlier version, which knew no content
        messages: tuple[str, ...] = ()
        if same is not None:
            found = (self._read(digest, content, _digest(each).hex()) for each in question.addresses)
            messages = tuple(record.message if record else "" for record in found)
        if first is not None and before:
            have = messages or ("",) * len(question.addresses)
            messages = tuple(
                message or (first.message if _digest(address) in before else "")
                for message, address in zip(have, question.addresses, strict=True)
            )
        known = first or same
        assert known is not None
        is_other = bool(content) and same is None and not before
        return KnownKey(known.message, is_other, same.expires_ms if same else 0, messages)

    def _read(self, *parts: str) -> SubmissionRecord | None:
        value = self._store.get(keys.submitted_key(*parts))
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
                busy = keys.submission_of(key) in self._under_way
                if not busy and read_submitted(value).expires_ms <= self._now():
                    batch.delete(key)
            if batch.ops:
                await self._commits.submit(batch)


def _recipients(known: SubmissionRecord | None) -> set[bytes]:
    """The digests of the recipients that the record of an earlier version has."""
    data = known.recipients if known is not None else b""
    return {data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)}


def _digest(address: str) -> bytes:
    return blake2b(address.encode(), digest_size=DIGEST_BYTES).digest()
