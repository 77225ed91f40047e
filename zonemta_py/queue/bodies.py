"""Reading the bodies of active messages. No coroutine here blocks the event loop, also on a remote store."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.active import ActiveMessage, ActiveMessages
from zonemta_py.queue.chunks import BodyCheck, read_body
from zonemta_py.queue.format.keys import CHUNK_BYTES, chunk_key
from zonemta_py.storage.interface import Store

SPOOL_MEMORY_BYTES = 1 << 20  # of one spooled body; the remainder is in a temporary file


class Bodies:
    """The bodies in ``store``, and those that ``active`` messages have in memory."""

    def __init__(self, store: Store, active: ActiveMessages) -> None:
        self._store = store
        self._active = active

    def read(self, message: ActiveMessage) -> Iterator[bytes]:
        """The body in chunks. Raises QueueCorrupt before a damaged one is complete.

        Blocks while chunks are read from a remote store: on the loop, ``prefetch`` first.
        """
        if message.body is not None:
            return iter((message.body,)) if message.body else iter(())
        return read_body(self._store, message.id, message.mark)

    async def stream(self, message: ActiveMessage) -> AsyncIterator[bytes]:
        """The body in chunks. Raises QueueCorrupt, see ``read``."""
        if not self._is_remote(message):
            for chunk in self.read(message):
                yield chunk
            return
        check = BodyCheck(message.id, message.mark)
        for number in range(1, message.mark.chunks + 1):
            yield check.chunk(await self._store.fetch_chunk(chunk_key(message.id, number)))

    def small(self, message: ActiveMessage) -> bytes | None:
        """The body if it is at most one chunk that is read without waiting, else None. Raises QueueCorrupt."""
        if message.body is None and (message.mark.chunks > 1 or self._store.is_remote()):
            return None
        return b"".join(self.read(message))

    async def prefetch(self, message: ActiveMessage, limit_bytes: int) -> None:
        """Read a remote body of at most ``limit_bytes``, so that ``read`` does not block. Raises QueueCorrupt."""
        if self._is_remote(message) and message.mark.size <= limit_bytes:
            body = b"".join([chunk async for chunk in self.stream(message)])
            self._active.set_body(message, body)

    @asynccontextmanager
    async def spooled(self, message: ActiveMessage) -> AsyncIterator[Callable[[], Iterator[bytes]]]:
        """A function that returns the body in chunks without waiting, each time from its first byte.

        A remote body is copied to a temporary file first. The chunks raise QueueCorrupt, see ``read``.
        """
        if not self._is_remote(message):
            yield lambda: self.read(message)
            return
        damage: list[QueueCorrupt] = []
        with SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as copy:
            try:
                async for chunk in self.stream(message):
                    copy.write(chunk)
            except QueueCorrupt as exc:
                damage.append(exc)

            def chunks() -> Iterator[bytes]:
                copy.seek(0)
                while chunk := copy.read(CHUNK_BYTES):
                    yield chunk
                if damage:
                    raise damage[0]

            yield chunks

    def _is_remote(self, message: ActiveMessage) -> bool:
        return message.body is None and self._store.is_remote()
