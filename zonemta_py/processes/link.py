"""Frames between two processes of the relay, over a Unix socket: those of one turn in one write.

Layout: 4 octets length (big-endian), then msgpack; length 0 is a sign of life. Both ends are ours and
of one version, so there is nothing to negotiate; a frame that cannot be read ends the link. Bodies
travel here, so octets are read into one buffer and decoded from it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt

log = logging.getLogger(__name__)

Handle = Callable[[Any], None]

_BEAT = bytes(4)
BUFFER_BYTES = 1 << 18
LEAST_FREE = 1 << 16  # octets to be read at once, at least
JOINED_MAX = 1 << 15  # octets that are worth a copy to have one piece


class Link(asyncio.BufferedProtocol):
    """One end. ``handle`` gets every frame, ``lost`` is called once, when the other end is gone."""

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes | memoryview], Any],
        handle: Handle,
        lost: Callable[[], None],
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._handle = handle
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0  # of what is unread in it
        self.heard_s = clock.monotonic_s()  # when the other end last said anything
        self._out: list[bytes] = []
        self._out_bytes = 0

    async def connect(self, fd: int, beat_s: float) -> None:
        """Take over an inherited socket, and show every ``beat_s`` that this process lives."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=sock)
        self._beat(beat_s)

    def _beat(self, beat_s: float) -> None:
        if self._transport is not None:
            self._transport.write(_BEAT)
            self._loop.call_later(beat_s, self._beat, beat_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other end is there."""
        self._transport = cast(asyncio.Transport, transport)
        if self._out:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone, and with it what was on its way."""
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._lost()

    def send(self, frame: Any) -> None:
        """Send ``frame`` at the end of this turn; nothing happens when the other end is gone."""
        data = self._encode(frame)
        self._out.append(len(data).to_bytes(4))
        self._out.append(data)
        self._out_bytes += len(data)
        if len(self._out) == 2 and self._transport is not None:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits for the end of the turn."""
        if self._transport is not None and self._out:
            if self._out_bytes > JOINED_MAX:
                self._transport.writelines(self._out)
                self._out = []
            else:
                self._transport.write(b"".join(self._out))
                self._out.clear()
            self._out_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next octets go: behind what is unread."""
        unread = self._end - self._start
        if not unread:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._buffer = bytearray(BUFFER_BYTES)
        elif len(self._buffer) - self._end < LEAST_FREE:
            self._buffer[:unread] = self._buffer[self._start : self._end]
            self._start, self._end = 0, unread
            if len(self._buffer) - unread < LEAST_FREE:
                self._buffer += bytes(len(self._buffer))  # a frame longer than all before
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Whole frames are handled, the rest waits."""
        self.heard_s = clock.monotonic_s()
        self._end += nbytes
        while self._end - self._start >= 4:
            begin = self._start + 4
            end = begin + int.from_bytes(self._buffer[self._start : begin])
            if end > self._end:
                return
            self._start = end
            if end == begin:
                continue
            try:
                frame = self._decode(memoryview(self._buffer)[begin:end])
            except QueueCorrupt as exc:
                log.critical("a frame cannot be read: %s", exc)
                self.close()
                return
            try:
                self._handle(frame)
            except Exception:
                log.exception("a frame was not handled: %.200r", frame)

    def close(self) -> None:
        """End the link."""
        if self._transport is not None:
            self._transport.abort()
