"""A delivery by a local transport, without a relay."""

from collections.abc import AsyncIterator

from zonemta_py.smtp.reply import Reply
from zonemta_py.transports.local import LocalMessage, LocalTransport

HEADER = b"Subject: x\r\n"
STORED = b"Return-Path: <s@a.example>\nDelivered-To: joe@b.example\nSubject: x\n\n"


class Begun:
    """Counts the calls of ``begin``."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self) -> None:
        self.times += 1


def local_message(
    *chunks: bytes, recipient: str = "joe@b.example", begin: Begun | None = None
) -> LocalMessage:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    size_bytes = len(HEADER) + 2 + sum(map(len, chunks))
    return LocalMessage("0" * 24, "s@a.example", recipient, HEADER, body, begin or Begun(), size_bytes)


async def delivered(
    transport: LocalTransport, *chunks: bytes, recipient: str = "joe@b.example"
) -> Reply:
    begin = Begun()
    reply = await transport.deliver(local_message(*chunks, recipient=recipient, begin=begin))
    assert begin.times == 1 or reply.code >= 400
    return reply
