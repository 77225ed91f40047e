"""The beginning of a dialogue, for tests that go on with bytes of their own."""

import asyncio

from tests.kit.listener import ListenerUnderTest

BEGIN = (b"MAIL FROM:<a@b.example>\r\n", b"RCPT TO:<c@d.example>\r\n", b"DATA\r\n")


async def connected(
    relay: ListenerUnderTest, *lines: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection after EHLO, with ``lines`` sent."""
    reader, writer = await asyncio.open_connection(*relay.address)
    writer.write(b"EHLO c.example\r\n" + b"".join(lines))
    await reader.readuntil(b"250 ENHANCEDSTATUSCODES\r\n")
    return reader, writer
