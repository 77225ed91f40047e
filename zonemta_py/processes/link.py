"""Frames between two processes of the relay, over a Unix socket: those of one turn in one write.

Layout: 4 octets length (big-endian), then msgpack; length 0 is a sign of life. Both ends are ours and of one version, so there
is nothing to negotiate; a frame that cannot be read ends the link.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from zonemta_py import clock
from zonemta_py.errors import QueueCorrupt

log = logging.getLogger(__name__)

Handle = Callable[[Any], None]

_BEAT = bytes(4)


class Link(asyncio.Protocol):
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
        self._unread = bytearray()
        self._needed = 4  # octets, to be worth looking at
        self.heard_s = clock.monotonic_s()  # when the other end last said anything
        self._out: list[bytes] = []

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
        self._lost()

    def send(self, frame: Any) -> None:
        """Send ``frame`` at the end of this turn; nothing happens when the other end is gone."""
        data = self._encode(frame)
        self._out.append(len(data).to_bytes(4))
        self._out.append(data)
        if len(self._out) == 2 and self._transport is not None:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits for the end of the turn."""
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def data_received(self, data: bytes) -> None:
        """Whole frames are handled, the rest waits."""
        self.heard_s = clock.monotonic_s()
        if self._unread:
            self._unread += data
            if len(self._unread) < self._needed:
                return
            data = bytes(self._unread)
            self._unread.clear()
        whole, at, length = memoryview(data), 0, len(data)
        while length - at >= 4:
            end = at + 4 + int.from_bytes(whole[at : at + 4])
            if length < end:
                self._needed = end - at
                break
            if end == at + 4:
                at = end
                continue
            try:
                frame = self._decode(whole[at + 4 : end])
            except QueueCorrupt as exc:
                log.critical("a frame cannot be read: %s", exc)
                self.close()
                return
            at = end
            try:
                self._handle(frame)
            except Exception:
                log.exception("a frame was not handled: %.200r", frame)
        else:
            self._needed = 4
        self._unread += whole[at:]

    def close(self) -> None:
        """End the link."""
        if self._transport is not None:
            self._transport.abort()
