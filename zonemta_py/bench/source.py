"""A load generator: SMTP sessions that submit equal messages, as Postfix's smtp-source does.

States of a session: greeting ─▶ AUTH, EHLO ─▶ MAIL, RCPT, DATA, body ─▶ next message, or QUIT.

Invariants:

- One command at a time, without pipelining, so that the time of each reply counts.
- Recipients are numbered, so that the sink can count each; a number is used once in all sessions (``Load.sent``).
- The first 4xx or 5xx ends the run with ``Load.failed``: a load that is not accepted is not a measurement.

Callers: ``bench.measure`` runs ``python -m zonemta_py.bench.source``, which prints one JSON line.

Example: 100 messages with 50 recipients over 10 sessions have the recipients ``0@sink.example`` to ``4999@sink.example``.
"""

import argparse
import asyncio
import os
import ssl
import time
from array import array
from base64 import b64encode
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import cast

from zonemta_py.config.endpoints import HostPort, host_port
from zonemta_py.core.codec import to_json
from zonemta_py.core.runtime import loop_factory


@dataclass(slots=True)
class Load:
    """The messages to send and how far that is. ``keep``: many messages on one connection, else one for each."""

    target: HostPort
    sessions: int
    messages: int
    recipients: int
    size: int
    keep: bool
    domain: str
    first: int = 0  # the number of the first recipient
    per_second: int = 0
    client: str = ""  # the source address of connections
    tls: bool = False  # from the first byte on
    sender: str = "source@source.example"
    domains: int = 0  # 0: ``domain`` alone; else ``lN.`` of it, in turn
    login: str = ""  # name:password for AUTH PLAIN
    began_s: float = 0.0
    sent: int = 0
    failed: str = ""
    accepted_s: "array[float]" = field(
        default_factory=lambda: array("d")
    )  # by message; 0: not accepted yet

    def domain_of(self, number: int) -> bytes:
        return (f"l{number % self.domains}.{self.domain}" if self.domains else self.domain).encode()

    def auth_command(self) -> list[bytes]:
        """AUTH PLAIN with its initial response (RFC 4616), if there is a login."""
        name, _, password = self.login.partition(":")
        response = b64encode(f"\0{name}\0{password}".encode())
        return [b"AUTH PLAIN %b\r\n" % response] if self.login else []


class SourceSession(asyncio.Protocol):
    """One connection, which sends messages of the load until none is left."""

    def __init__(self, load: Load, body: bytes, done: asyncio.Future[None]) -> None:
        self._load = load
        self._body = body
        self._done = done
        self._buffer = b""
        self._steps: list[bytes] = []
        self._message = -1  # number of the message whose body was sent last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the first command, which follows the greeting."""
        self._transport = cast(asyncio.Transport, transport)
        self._steps = [*self._load.auth_command(), b"EHLO source.example\r\n"]

    def connection_lost(self, exc: Exception | None) -> None:
        """End of the session, by either side."""
        if not self._done.done():
            self._done.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Read replies line by line; a 4xx or 5xx reply ends the run."""
        self._buffer += data
        while b"\r\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\r\n")
            if line[3:4] == b"-":
                continue
            if line[:1] not in b"23":
                self._load.failed = line.decode()
                self._transport.close()
                return
            if not self._steps and self._message >= 0:
                self._load.accepted_s[self._message] = time.monotonic()
            self._next()

    def _next(self) -> None:
        load = self._load
        if not self._steps and load.per_second and load.sent:
            wait_s = load.began_s + load.sent / load.per_second - time.monotonic()
            if wait_s > 0:
                asyncio.get_running_loop().call_later(wait_s, self._send_step)
                return
        self._send_step()

    def _send_step(self) -> None:
        if self._transport.is_closing():
            return
        if not self._steps and not self._plan():
            self._transport.write(b"QUIT\r\n")
            self._transport.close()
            return
        self._transport.write(self._steps.pop())

    def _plan(self) -> bool:
        """Prepare the commands of the next message, last first. False when this session has none left."""
        load = self._load
        if load.sent >= load.messages or (not load.keep and self._has_sent):
            return False
        number = load.sent
        load.sent += 1
        self._has_sent = True
        self._message = number
        first = load.first + number * load.recipients
        recipients = [
            b"RCPT TO:<%d@%b>\r\n" % (first + i, load.domain_of(first + i))
            for i in range(load.recipients)
        ]
        self._steps = [
            self._body,
            b"DATA\r\n",
            *reversed(recipients),
            b"MAIL FROM:<%b>\r\n" % load.sender.encode(),
        ]
        return True

    _has_sent = False


def make_body(size: int) -> bytes:
    """A message of about ``size`` bytes that does not compress well, final dot included."""
    line = bytes(33 + (i * 7919) % 90 for i in range(76)).replace(b".", b"-") + b"\r\n"
    header = b"From: source@source.example\r\nTo: list@sink.example\r\nSubject: benchmark\r\nMessage-ID: <1@b>\r\n\r\n"
    lines = [b"%08d%b" % (i, line[8:]) for i in range(max(1, (size - len(header)) // len(line)))]
    return header + b"".join(lines) + b".\r\n"


@cache
def _trusting() -> ssl.SSLContext:
    """A context that accepts the self-signed certificate of a benchmark."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _connection(loop: asyncio.AbstractEventLoop, load: Load, body: bytes) -> None:
    done: asyncio.Future[None] = loop.create_future()
    local = (load.client, 0) if load.client else None
    await loop.create_connection(
        lambda: SourceSession(load, body, done),
        load.target.host,
        load.target.port,
        local_addr=local,
        ssl=_trusting() if load.tls else None,
    )
    await done


async def run(load: Load) -> dict[str, object]:
    """Send the load; returns the number of messages, the seconds and the first refusal, if any."""
    loop = asyncio.get_running_loop()
    body = make_body(load.size)
    load.began_s = began_s = time.monotonic()
    load.accepted_s = array("d", bytes(8 * load.messages))

    async def session() -> None:
        while load.sent < load.messages and not load.failed:
            await _connection(loop, load, body)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.sessions, load.messages)):
            group.create_task(session())
    took_s = time.monotonic() - began_s
    return {"messages": load.sent, "seconds": round(took_s, 3), "failed": load.failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--messages", type=int, default=1000)
    parser.add_argument("--recipients", type=int, default=1)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--domain", default="sink.example")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--per-second", type=int, default=0)
    parser.add_argument("--client", default="")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--sender", default="source@source.example")
    parser.add_argument("--domains", type=int, default=0)
    parser.add_argument("--login", default="")
    parser.add_argument("--times", type=Path, help="write when each message was accepted")
    options = parser.parse_args()
    load = Load(
        target=host_port(options.target),
        sessions=options.sessions,
        messages=options.messages,
        recipients=options.recipients,
        size=options.size,
        keep=options.keep,
        domain=options.domain,
        first=options.first,
        per_second=options.per_second,
        client=options.client,
        tls=options.tls,
        sender=options.sender,
        domains=options.domains,
        login=options.login,
    )
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        result = runner.run(run(load))
    if options.times is not None:
        options.times.write_bytes(load.accepted_s.tobytes())
    cpu = os.times()
    print(to_json({**result, "cpu_seconds": cpu.user + cpu.system}).decode())


if __name__ == "__main__":
    main()
