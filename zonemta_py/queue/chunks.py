"""Bodies in 64 KiB values: written as they arrive, read back with their checksum.

A body that fits one chunk is written with its message; a longer one announces itself by ``open/``
with its first chunk, so that a crash leaves nothing that cannot be swept.
"""

import zlib
from collections import deque
from collections.abc import Iterator, MutableMapping
from typing import Protocol

from zonemta_py.core.clock import now_ms
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format.keys import CHUNK_BYTES, CHUNKS_MAX, chunk_key, open_key
from zonemta_py.queue.format.records import FORMAT, Mark, Open
from zonemta_py.storage.interface import View

WRITES_AHEAD = 4  # chunks on their way to disk per message: bounds memory, keeps the disk busy


class Upload(Protocol):
    """A body on its way in, as the queue knows it.

    ``abandoned``: swept after a day without progress, so it cannot be accepted any more.
    """

    @property
    def id(self) -> str:
        """The message."""

    abandoned: bool

    @property
    def chunks(self) -> int:
        """How many are written or on their way."""

    @property
    def last(self) -> bytes:
        """The chunk that remains for the accept batch, or empty."""

    def mark(self, created_ms: int) -> Mark:
        """The marker of the finished body."""


class Commits(Protocol):
    """Where a writer puts its batches, in order."""

    @property
    def failure(self) -> QueueUnavailable | None:
        """Why nothing can be written any more."""

    def submit(self, batch: WriteBatch) -> CommitFuture:
        """Have ``batch`` written."""


class MessageWriter:
    """Takes a body in pieces. ``last`` is what remains for the accept batch, one chunk at most."""

    def __init__(
        self,
        message: str,
        boot: int,
        commits: Commits,
        register: MutableMapping[str, Upload],
    ) -> None:
        self.id = message
        self.abandoned = False
        self.chunks = 0
        self.size = 0
        self.crc = 0
        self._boot = boot
        self._commits = commits
        self._pieces: list[bytes] = []
        self._held = 0
        self._register = register  # of writers with chunks on disk, for the sweep
        self._ahead: deque[CommitFuture] = deque()

    def write(self, data: bytes) -> CommitFuture | None:
        """Take ``data``, any length; the batch, if any, is to be awaited before the next.

        Raises QueueUnavailable, LocalError over 61 GiB.
        """
        self._pieces.append(data)
        self._held += len(data)
        self.size += len(data)
        self.crc = zlib.crc32(data, self.crc)
        if self._held <= CHUNK_BYTES:
            return None
        body = b"".join(self._pieces)
        at = 0
        while len(body) - at > CHUNK_BYTES:
            self._put(body[at : at + CHUNK_BYTES])
            at += CHUNK_BYTES
        self._pieces = [body[at:]]
        self._held = len(body) - at
        wait_for = None
        while len(self._ahead) > WRITES_AHEAD:
            wait_for = self._ahead.popleft()  # batches are written in order
        return wait_for

    def _put(self, chunk: bytes) -> None:
        if self._commits.failure is not None:
            raise self._commits.failure
        self.chunks += 1
        if self.chunks >= CHUNKS_MAX:
            raise LocalError("the body has too many chunks")
        batch = WriteBatch()
        batch.kinds.append("chunk")
        batch.patient = True
        batch.put(chunk_key(self.id, self.chunks), chunk)
        if self.chunks == 1:
            self._register[self.id] = self
        if self.chunks % 1024 == 1:
            batch.put(open_key(self.id), pack(Open(FORMAT, self._boot, now_ms())))
        self._ahead.append(self._commits.submit(batch))

    @property
    def last(self) -> bytes:
        """The final chunk; empty only for an empty body."""
        return b"".join(self._pieces)

    def mark(self, created_ms: int) -> Mark:
        """The marker of the finished body."""
        chunks = self.chunks + (1 if self._held else 0)
        return Mark(FORMAT, created_ms, self.size, chunks, self.crc)


def read_body(store: View, message: str, mark: Mark) -> Iterator[bytes]:
    """The chunks of a body, in order. Raises QueueCorrupt before the last one is given out.

    Size, number and checksum are compared while the last chunk is still held back, so nobody can
    take a damaged body for a whole one.
    """
    crc, size = 0, 0
    for number in range(1, mark.chunks + 1):
        chunk = store.get(chunk_key(message, number), checked=False)
        if chunk is None:
            raise QueueCorrupt(f"{message}: chunk {number} of {mark.chunks} is missing")
        crc = zlib.crc32(chunk, crc)
        size += len(chunk)
        if number == mark.chunks and (size, crc) != (mark.size, mark.crc):
            raise QueueCorrupt(f"{message}: the body is damaged (size {size} of {mark.size})")
        yield chunk
