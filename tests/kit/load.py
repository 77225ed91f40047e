"""Clients that submit numbered messages until they are stopped, and record every 250.

The name of a recipient decides its outcome: ``N.ok`` is delivered, ``N.later`` is deferred once,
``N.no`` is refused, with a report to ``N@senders.example``.
"""

import asyncio
from dataclasses import replace
from typing import Any

from tests.kit.deadlines import until
from zonemta_py.sink.server import Received, Sink

DOMAINS = 3
FILLER = b"." + b"x" * 69 + b"\r\n"  # a dot is doubled on the way
BLOCK_LINES = 56
SIZES_BYTES = (2_000_000, 6_000_000, 30_000_000)


def recipients_of(number: int) -> list[str]:
    """The recipients of message ``number``: one or two, in one domain or two."""
    kind = {3: "no", 7: "later"}.get(number % 10, "ok")
    found = [f"{number}.{kind}@d{number % DOMAINS}.example"]
    if number % 5 == 0:
        found.append(f"{number}.ok@d{(number + 1) % DOMAINS}.example")
    return found


def body_of(number: int) -> bytes:
    """A body that no other message has: mostly 500 bytes, also none, 200 KB, or as much as 30 MB."""
    if number % 200 == 0:
        blocks = SIZES_BYTES[number // 200 % len(SIZES_BYTES)] // (BLOCK_LINES * len(FILLER))
    elif number % 20 == 0:
        blocks = 50
    else:
        return b"" if number % 20 == 1 else b"%08d\r\n" % number + FILLER * 7
    return b"".join(b"%08d %08d\r\n" % (number, i) + FILLER * BLOCK_LINES for i in range(blocks))


class ComparingSink(Sink):
    """A receiver that compares each body with that of its message. ``wrong``: those that differ, by sender."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.compared = 0
        self.wrong: list[str] = []

    def received(self, message: Received) -> None:
        """Compare, then count the message without its data. Reports have the null sender."""
        number, _, domain = message.sender.partition("@")
        if domain:
            self.compared += 1
            if message.data.partition(b"\r\n\r\n")[2] != body_of(int(number)):
                self.wrong.append(message.sender)
        super().received(replace(message, data=b""))
        self.messages.clear()


class Load:
    """``clients`` sessions that reconnect when the relay is killed. ``acknowledged``: numbers of messages."""

    def __init__(self, port: int, clients: int = 8) -> None:
        self.port = port
        self.next = 0
        self.acknowledged: set[int] = set()
        self.refused: list[str] = []  # the first characters of every refusal
        self._clients = clients
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = False
        self._sessions = 0

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._client()) for _ in range(self._clients)]

    async def stop(self) -> None:
        """Finish the current transactions; the relay must be running."""
        self._stop = True
        await asyncio.gather(*self._tasks)

    async def disconnected(self) -> None:
        """Wait until the sessions with a relay that is down have read its last replies."""
        await until(lambda: not self._sessions, "the end of the sessions")

    async def _client(self) -> None:
        while not self._stop:
            try:
                await self._session()
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)  # the relay is down; a real client waits as well

    async def _session(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._sessions += 1
        try:
            await reader.readuntil(b"220 ")
            writer.write(b"EHLO c.example\r\n")
            await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
            while not self._stop:
                number, self.next = self.next, self.next + 1
                lines = [f"MAIL FROM:<{number}@senders.example>"]
                lines += [f"RCPT TO:<{address}>" for address in recipients_of(number)]
                writer.write("\r\n".join([*lines, "DATA", ""]).encode())
                while not (line := await reader.readline()).startswith(b"354"):
                    if not line.startswith(b"250"):
                        self._refusal(line)
                data = b"Subject: x\r\n\r\n" + body_of(number)
                writer.write(data.replace(b"\r\n.", b"\r\n..") + b".\r\n")
                line = await reader.readline()
                if not line.startswith(b"250 2.0.0"):
                    self._refusal(line)
                self.acknowledged.add(number)
        finally:
            self._sessions -= 1
            writer.close()

    def _refusal(self, line: bytes) -> None:
        if line:
            self.refused.append(line[:9].decode())
        raise ConnectionError(line)
