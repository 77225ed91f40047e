"""An SMTP client that sends exactly the bytes of the test."""

import asyncio
from types import TracebackType

from tests.kit.deadlines import scaled

REPLY_S = 20.0


class RawClient:
    """A connection to a listener. Use it as an async context manager, or close it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, port: int, *, greeting: bool = True, host: str = "127.0.0.1", source: str | None = None
    ) -> "RawClient":
        """Connect to ``host``, from the address ``source``, and read the greeting, unless ``greeting`` is false."""
        local = (source, 0) if source else None
        client = cls(*await asyncio.open_connection(host, port, local_addr=local))
        if greeting:
            assert (await client.reply()).startswith("220")
        return client

    async def reply(self) -> str:
        """The next reply, lines joined by newlines; empty when the connection has ended."""
        lines: list[str] = []
        while True:
            try:
                line = await asyncio.wait_for(self._reader.readline(), scaled(REPLY_S))
            except ConnectionError:
                line = b""
            if not line:
                return "\n".join(lines)
            lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))
            if line[3:4] != b"-":
                return "\n".join(lines)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            pass  # the relay has closed the connection

    async def command(self, line: str) -> str:
        await self.send(line.encode("utf-8", "surrogateescape") + b"\r\n")
        return await self.reply()

    async def ehlo(self) -> str:
        return await self.command("EHLO client.example")

    async def envelope(self, *recipients: str, sender: str = "s@sender.example") -> str:
        """MAIL, RCPTs and DATA; the reply to DATA."""
        assert (await self.command(f"MAIL FROM:<{sender}>")).startswith("250")
        for recipient in recipients or ("x@a.example",):
            assert (await self.command(f"RCPT TO:<{recipient}>")).startswith("250")
        return await self.command("DATA")

    async def message(self, data: bytes, *recipients: str, sender: str = "s@sender.example") -> str:
        """A whole transaction with ``data`` as it is, final dot included; the last reply."""
        assert (await self.envelope(*recipients, sender=sender)).startswith("354")
        await self.send(data)
        return await self.reply()

    async def ended(self) -> bool:
        """Whether the relay has closed the connection; waits for it."""
        try:
            return await asyncio.wait_for(self._reader.read(1), scaled(REPLY_S)) == b""
        except ConnectionError:
            return True

    def half_close(self) -> None:
        self._writer.write_eof()

    def reset(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
