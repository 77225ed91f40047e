"""Bodies in 64 KiB values: written as they arrive, read back and compared with their checksum.

A body of one chunk is written with its message. A longer one writes ``open/`` with its first chunk, so
that the sweep after a crash finds all its chunks.
"""

from collections import deque
from collections.abc import Iterator, MutableMapping
from typing import Protocol

from zonemta_py.core.checksum import crc32
from zonemta_py.core.clock import now_ms
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format.keys import CHUNK_BYTES, CHUNKS_MAX, chunk_key, open_key
from zonemta_py.queue.format.records import FORMAT, Mark, Open
from zonemta_py.storage.interface import View

WRITES_AHEAD = 4  # chunks per message submitted and not yet written: bounds memory, keeps the disk busy


class Upload(Protocol):
    """A body being received, as the queue sees it.

    ``abandoned``: its chunks are not complete; it cannot be accepted any more.
    """

    @property
    def id(self) -> str:
        """The message."""

    abandoned: bool

    @property
    def chunks(self) -> int:
        """How many were submitted."""

    @property
    def last(self) -> bytes:
        """The chunk for the accept batch; empty for an empty body."""

    def mark(self, created_ms: int) -> Mark:
        """The marker of the finished body."""


class Commits(Protocol):
    """Writes batches in the order of their submission."""

    @property
    def failure(self) -> QueueUnavailable | None:
        """Why nothing can be written any more, or None."""

    def submit(self, batch: WriteBatch) -> CommitFuture:
        """Write ``batch``; returns its future."""


class MessageWriter:
    """Splits a body into chunks. ``last`` is left for the accept batch."""

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
        self._register = register  # writers with chunks on disk, for the sweep
        self._ahead: deque[CommitFuture] = deque()

    def write(self, data: bytes) -> CommitFuture | None:
        """Append ``data`` of any length; the future, if any, must be done before the next write.

        Raises QueueUnavailable, LocalError over 61 GiB.
        """
        size = len(data)
        self.size += size
        self.crc = crc32(data, self.crc)
        if self._held + size <= CHUNK_BYTES:
            self._pieces.append(data)
            self._held += size
            return None
        at = CHUNK_BYTES - self._held
        self._pieces.append(data[:at])
        self._put(b"".join(self._pieces))
        while size - at > CHUNK_BYTES:
            self._put(data[at : at + CHUNK_BYTES])
            at += CHUNK_BYTES
        self._pieces = [data[at:]]
        self._held = size - at
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
        batch.may_wait = True
        batch.put(chunk_key(self.id, self.chunks), chunk)
        if self.chunks == 1:
            self._register[self.id] = self
        if self.chunks % 1024 == 1:
            batch.put(open_key(self.id), pack(Open(FORMAT, self._boot, now_ms())))
        self._ahead.append(self._commits.submit(batch))

    @property
    def last(self) -> bytes:
        """The final chunk; empty for an empty body."""
        return b"".join(self._pieces)

    def mark(self, created_ms: int) -> Mark:
        """The marker of the finished body."""
        chunks = self.chunks + (1 if self._held else 0)
        return Mark(FORMAT, created_ms, self.size, chunks, self.crc)


class BodyCheck:
    """Compares the chunks of a body, in order, with its marker.

    The last chunk is compared before it is returned, so that a damaged body is never complete.
    """

    __slots__ = ("_crc", "_mark", "_message", "_number", "_size")

    def __init__(self, message: str, mark: Mark) -> None:
        self._message = message
        self._mark = mark
        self._number = self._size = self._crc = 0

    def chunk(self, chunk: bytes | None) -> bytes:
        """The next chunk. Raises QueueCorrupt when it is missing, or the last and the sums differ."""
        mark, message = self._mark, self._message
        self._number += 1
        if chunk is None:
            raise QueueCorrupt(f"{message}: chunk {self._number} of {mark.chunks} is missing")
        self._crc = crc32(chunk, self._crc)
        self._size += len(chunk)
        if self._number == mark.chunks and (self._size, self._crc) != (mark.size, mark.crc):
            raise QueueCorrupt(f"{message}: the body is damaged (size {self._size} of {mark.size})")
        return chunk


def read_body(view: View, message: str, mark: Mark) -> Iterator[bytes]:
    """The chunks of a body, in order. Raises QueueCorrupt before a damaged one is complete."""
    check = BodyCheck(message, mark)
    for number in range(1, mark.chunks + 1):
        yield check.chunk(view.get(chunk_key(message, number), checked=False))
