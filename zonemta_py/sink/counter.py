"""The sink of benchmarks, in a process of its own: counts every recipient and records the time of its delivery.

``counter PORT DIRECTORY [--delay-ms N] [--tls FILE]``. The local part of a recipient is its number
(``17@sink.example``). DIRECTORY/count holds the number of deliveries while it runs; at the end
DIRECTORY/deliveries holds what ``Deliveries.load`` reads. ``--delay-ms`` delays every reply.
"""

import argparse
import asyncio
import os
import signal
import ssl
from array import array
from pathlib import Path
from time import monotonic
from typing import cast

from zonemta_py.core.clock import wait_event
from zonemta_py.core.runtime import loop_factory

WRITE_INTERVAL_S = 0.01
_GREETING = b"220 sink.example ESMTP\r\n"
_EHLO = b"250-sink.example\r\n%b250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250 SIZE 0\r\n"


class Deliveries:
    """The number of deliveries of each recipient, and the time of the first (monotonic seconds)."""

    def __init__(self) -> None:
        self.recipients = 0
        self.times = array("d")
        self.counts = bytearray()

    def add(self, numbers: list[int], now_s: float) -> None:
        """Count one message for the recipients ``numbers``."""
        self.recipients += len(numbers)
        for number in numbers:
            if number >= len(self.counts):
                more = max(1024, number + 1 - len(self.counts))
                self.counts += bytes(more)
                self.times.extend([0.0] * more)
            if not self.counts[number]:
                self.times[number] = now_s
            self.counts[number] = min(255, self.counts[number] + 1)

    def save(self, path: Path) -> None:
        """Write the number of recipients (8 bytes, big-endian), a byte for each count, a float64 for each time."""
        path.write_bytes(len(self.counts).to_bytes(8) + bytes(self.counts) + self.times.tobytes())

    @classmethod
    def load(cls, path: Path) -> "Deliveries":
        """Read what ``save`` wrote."""
        data = path.read_bytes()
        length = int.from_bytes(data[:8])
        found = cls()
        found.counts = bytearray(data[8 : 8 + length])
        found.times.frombytes(data[8 + length :])
        return found


class CountingSession(asyncio.Protocol):
    """One connection: pipelined commands are answered in one write; no message is kept, no syntax checked."""

    def __init__(
        self, deliveries: Deliveries, delay_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._tls = tls  # for STARTTLS; None once encrypted
        self._deliveries = deliveries
        self._delay_s = delay_s
        self._buffer = b""
        self._numbers: list[int] = []
        self._in_data = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._answer(_GREETING)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        out = []
        while buffer:
            if self._in_data:
                end = 0 if buffer.startswith(b".\r\n") else buffer.find(b"\r\n.\r\n")
                if end < 0:
                    buffer = buffer[-4:]
                    break
                buffer = buffer[end + (5 if end else 3) :]
                self._in_data = False
                self._deliveries.add(self._numbers, monotonic())
                self._numbers = []
                out.append(b"250 2.0.0 Ok\r\n")
            else:
                line, end_of_line, remaining = buffer.partition(b"\n")
                if not end_of_line:
                    break
                buffer = remaining
                out.append(self._command(line))
        self._buffer = buffer
        self._answer(b"".join(out))

    def _command(self, line: bytes) -> bytes:
        verb = line[:4].upper()
        if verb == b"RCPT":
            number = line[line.find(b"<") + 1 : line.find(b"@")]
            self._numbers.append(int(number) if number.isdigit() else 0)
            return b"250 2.1.5 Ok\r\n"
        if verb in (b"MAIL", b"RSET"):
            self._numbers = []
        if verb == b"DATA":
            self._in_data = True
            return b"354 Go on\r\n"
        if verb == b"QUIT":
            self._transport.close()
            return b""
        if verb == b"EHLO":
            return _EHLO % (b"250-STARTTLS\r\n" if self._tls else b"")
        if verb == b"STAR" and self._tls:
            self._transport.pause_reading()
            self._handshake = asyncio.ensure_future(self._encrypt(self._tls))
            return b"220 Go on\r\n"
        return b"250 2.0.0 Ok\r\n"

    async def _encrypt(self, tls: ssl.SSLContext) -> None:
        self._tls = None
        loop = asyncio.get_running_loop()
        encrypted = await loop.start_tls(self._transport, self, tls, server_side=True)
        if encrypted is not None:
            self._transport = encrypted

    def _answer(self, replies: bytes) -> None:
        if not replies or self._transport.is_closing():
            return
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._write, replies)
        else:
            self._transport.write(replies)

    def _write(self, replies: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(replies)


async def run(port: int, directory: Path, delay_s: float, tls: ssl.SSLContext | None) -> None:
    """Count until SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    deliveries = Deliveries()
    server = await loop.create_server(
        lambda: CountingSession(deliveries, delay_s, tls), "127.0.0.1", port, backlog=1024
    )
    print("ready", flush=True)
    shown = -1
    handle = os.open(directory / "count", os.O_WRONLY | os.O_CREAT, 0o644)
    while not stop.is_set():
        if deliveries.recipients != shown:
            shown = deliveries.recipients
            os.pwrite(
                handle, b"%d" % shown, 0
            )  # the count only grows, so that no shorter text is overwritten
        await wait_event(stop, WRITE_INTERVAL_S)
    os.close(handle)
    server.close()
    deliveries.save(directory / "deliveries")


def main() -> None:
    """Run the sink of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--tls", help="offer STARTTLS, with TLS.pem and TLS.key")
    options = parser.parse_args()
    tls = None
    if options.tls:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(f"{options.tls}.pem", f"{options.tls}.key")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(options.port, options.directory, options.delay_ms / 1000, tls))


if __name__ == "__main__":
    main()
