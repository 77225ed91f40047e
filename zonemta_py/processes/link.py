"""Frames between two processes of the relay, over a Unix socket; those of one loop turn in one write.

Layout: 4 bytes length (big-endian), then msgpack; length 0 is a beat. Both ends have the same version,
so nothing is negotiated; a frame that cannot be decoded ends the link. Bodies are sent here too, so
frames are decoded from one receive buffer without a copy.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.transports.tracing import TraceLine

log = logging.getLogger(__name__)

_BEAT = bytes(4)
BUFFER_BYTES = 1 << 18
FREE_MIN_BYTES = 1 << 16  # of the receive buffer, for one read
JOINED_MAX_BYTES = 1 << 15  # frames up to this size are copied into one piece


class LogLevel(Struct, frozen=True, array_like=True, tag=10):
    """To a process of either kind: log messages of ``level`` and above from now on."""

    level: str


class SetTraces(Struct, frozen=True, array_like=True, tag=21):
    """To a process of either kind: trace these domains, messages and addresses, and nothing else."""

    targets: list[str]


class Traced(Struct, frozen=True, array_like=True, tag=22):
    """From a process of either kind: a line of a dialogue that is traced."""

    line: TraceLine


class Link(asyncio.BufferedProtocol):
    """One end. ``handle`` receives every frame; ``on_lost`` is called once, when the link has ended.

    ``heard_s``: monotonic time of the last bytes from the other end.
    """

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes | memoryview], Any],
        handle: Callable[[Any], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._encode = encode
        self._decode = decode
        self._handle = handle
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0  # of the unread bytes in it
        self.heard_s = clock.monotonic_s()
        self._out: list[bytes] = []
        self._out_bytes = 0

    async def connect(self, fd: int, beat_s: float) -> None:
        """Use an inherited socket, and send a beat every ``beat_s``. Raises OSError."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=sock)
        self._beat(beat_s)

    def _beat(self, beat_s: float) -> None:
        if self._transport is not None:
            self._transport.write(_BEAT)
            self._loop.call_later(beat_s, self._beat, beat_s)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what was given before."""
        self._transport = cast(asyncio.Transport, transport)
        if self._out:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop unsent frames, and call ``on_lost``."""
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._on_lost()

    def send(self, frame: Any) -> None:
        """Send ``frame`` at the end of this loop turn; without effect once the link has ended."""
        data = self._encode(frame)
        self._out.append(len(data).to_bytes(4))
        self._out.append(data)
        self._out_bytes += len(data)
        if len(self._out) == 2 and self._transport is not None:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the frames of this turn now."""
        if self._transport is not None and self._out:
            if self._out_bytes > JOINED_MAX_BYTES:
                self._transport.writelines(self._out)
                self._out = []
            else:
                self._transport.write(b"".join(self._out))
                self._out.clear()
            self._out_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """The free part of the buffer, behind the unread bytes."""
        unread = self._end - self._start
        if not unread:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES:
                self._buffer = bytearray(BUFFER_BYTES)
        elif len(self._buffer) - self._end < FREE_MIN_BYTES:
            self._buffer[:unread] = self._buffer[self._start : self._end]
            self._start, self._end = 0, unread
            if len(self._buffer) - unread < FREE_MIN_BYTES:
                self._buffer += bytes(len(self._buffer))  # for a frame longer than the buffer
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle every complete frame in the buffer; one that cannot be decoded ends the link."""
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
                # Not what is in it: mail, or a configuration with its passwords.
                log.exception("a frame was not handled: %s", type(frame).__name__)

    def close(self) -> None:
        """End the link at once; unsent data are dropped. ``on_lost`` is called later."""
        if self._transport is not None:
            self._transport.abort()
