"""The connection of an open session: replies in order, time limits, flow control.

Replies are matched to commands in order. A reply that arrives before it is awaited is kept; more replies
than commands end the session.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping

from zonemta_py.config.zones import Timeouts
from zonemta_py.core import clock
from zonemta_py.core.errors import SessionLost
from zonemta_py.smtp.reply import Reply, ReplyReader
from zonemta_py.transports.tracing import SessionTrace

JOINED_MAX = 16_384  # bytes: above it a copy costs more than a list of buffers


class Dialogue(asyncio.Protocol):
    """Writes commands and reads replies. ``usable``: another transaction may follow on this connection. ``lost_tls``: it is in clear text
    because TLS failed. ``withdrawn``: extensions that the peer offers and whose parameters it refuses.

    ``trace``: of the present transaction, if it is traced.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        extensions: Mapping[str, str],
        timeouts: Timeouts,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._extensions = extensions
        self._timeouts = timeouts
        self._reader = ReplyReader()
        self._replies: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while writing is paused
        self._lost: SessionLost | None = None
        self._deadline = clock.Deadline(loop, self._timed_out)
        self._replies_owed = 0  # limit of replies that are not awaited yet
        self.usable = True
        self.lost_tls = False
        self.withdrawn: frozenset[str] = frozenset()
        self.trace: SessionTrace | None = None
        self.messages = 0
        self.secure = transport.get_extra_info("sslcontext") is not None
        limit = extensions.get("size", "")
        self.size_max = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 20 else 0

    def offers(self, extension: str) -> bool:
        """Whether the peer announced ``extension`` (lower case)."""
        return extension in self._extensions

    def withdraw(self, extensions: Collection[str]) -> None:
        """Use ``extensions`` (lower case) no more, as if the peer had not announced them."""
        offered = self._extensions
        self.withdrawn |= offered.keys() & extensions
        self._extensions = {name: offered[name] for name in offered if name not in extensions}

    def parameter(self, extension: str) -> str:
        """What the peer announced behind ``extension`` (lower case); empty without it."""
        return self._extensions.get(extension, "")

    def data_received(self, data: bytes) -> None:
        """Read replies; more than ``_replies_owed`` end the session."""
        if self.trace is not None:
            self.trace.server(data)
        try:
            self._replies.extend(self._reader.feed(data))
        except SessionLost as exc:
            self._end(exc)
            self._transport.abort()
            return
        if len(self._replies) > self._replies_owed:
            self._end(SessionLost("the peer sends replies without commands"))
            self._transport.abort()
            return
        if self._writable is not None and not self._writable.done() and self._replies:
            self._writable.set_result(None)  # a reply during the body: the writer must read it
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End every wait with SessionLost."""
        self._end(SessionLost(f"connection lost: {exc}" if exc else "the peer closed the connection"))

    def pause_writing(self) -> None:
        """The write buffer is full: ``_drained`` waits."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """The write buffer has room again."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _timed_out(self) -> None:
        self._end(SessionLost("timed out waiting for the peer"))
        self._transport.abort()

    def _end(self, reason: SessionLost) -> None:
        self.usable = False
        if self._lost is None:
            self._lost = reason
            if self.trace is not None:
                self.trace.note(str(reason))
        self._deadline.cancel()
        for waiter in (self._waiter, self._writable):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Send QUIT if the session is usable, and close without waiting for the reply."""
        self._deadline.cancel()
        if self.usable and self._lost is None and not self._transport.get_write_buffer_size():
            if self.trace is not None:
                self.trace.client(b"QUIT\r\n")
            self._transport.write(b"QUIT\r\n")
            self._transport.close()
        else:
            self._transport.abort()  # a peer that does not read could delay a close forever
        self.usable = False

    async def quit(self, wait_s: float) -> None:
        """Send QUIT, and wait up to ``wait_s`` until the peer has closed: it counts the session no more then."""
        try:
            if self.usable and self._lost is None:
                self.usable, self._replies_owed = False, 1
                async with asyncio.timeout(wait_s):
                    self._write(b"QUIT\r\n")
                    await self._reply(wait_s)
                    while self._lost is None:
                        self._waiter = self._loop.create_future()
                        await self._waiter
        except (SessionLost, TimeoutError):
            pass
        finally:
            self._deadline.cancel()
            self._transport.abort()

    def abort(self) -> None:
        """Close at once, so that an unfinished message does not look finished."""
        self._end(SessionLost("aborted"))
        self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        if self.trace is not None:
            self.trace.client(data)
        self._transport.write(data)

    def _write_all(self, parts: list[bytes]) -> None:
        """Write ``parts``: large ones without a copy that joins them."""
        if len(parts[0]) < JOINED_MAX and len(parts) < 3:
            self._write(b"".join(parts))
            return
        if self._lost is not None:
            raise self._lost
        if self.trace is not None:
            for part in parts:
                self.trace.client(part)
        self._transport.writelines(parts)

    async def _drained(self) -> None:
        """Wait until the write buffer has room, at most ``timeouts.data``. Raises SessionLost."""
        if self._writable is not None:
            self._deadline.set(self._timeouts.data)
            await self._writable
            self._deadline.clear()
        else:
            await asyncio.sleep(0)  # a body from memory must not starve the other sessions
        if self._lost is not None and not self._replies:
            raise self._lost

    async def _reply(self, timeout_s: float) -> Reply:
        """The next reply, in order. Raises SessionLost."""
        if not self._replies:
            self._deadline.set(timeout_s)
            while not self._replies:
                if self._lost is not None:
                    raise self._lost
                self._waiter = self._loop.create_future()
                await self._waiter
            self._deadline.clear()
        return self._next()

    def _next(self) -> Reply:
        """The next reply, which has arrived."""
        reply = self._replies.popleft()
        if reply.code == 421:
            self.usable = False
        return reply
