"""What transports without a session have in common: one recipient at a time, the message as a stream.

A transport returns its result as a ``Reply``, like a server: 2xx delivered, 4xx try again later, 5xx failed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from zonemta_py.smtp.reply import Reply

DELIVERED = Reply(250, "2.0.0", "delivered")


class Unanswered(Reply):
    """The message was handed over and no answer received: the recipient may have it."""

    __slots__ = ()


class LocalMessage(NamedTuple):
    """A message for one recipient. ``message`` is the queue id of the message.

    ``header`` ends with CRLF. ``body`` iterates over the bytes after the empty line; each call starts at
    the beginning. ``size_bytes`` counts the header, the empty line and the body. The transport awaits ``begin`` before its first action that cannot be undone.
    """

    message: str
    sender: str
    recipient: str
    header: bytes
    body: Callable[[], AsyncIterator[bytes]]
    begin: Callable[[], Awaitable[None]]
    size_bytes: int


Parcel = LocalMessage  # deprecated: the old name


class LocalTransport(Protocol):
    """Delivers messages without a session."""

    async def deliver(self, message: LocalMessage) -> Reply:
        """Deliver ``message`` and return the result, ``Unanswered`` if that is not known.

        Raises only what ``body`` and ``begin`` raise.
        """

    def close(self) -> None:
        """Release connections; no delivery follows."""


def trace(message: LocalMessage) -> bytes:
    """The header fields of final delivery. Source: RFC 5321 section 4.4, RFC 9228."""
    return f"Return-Path: <{message.sender}>\r\nDelivered-To: {message.recipient}\r\n".encode()


async def lines(message: LocalMessage) -> AsyncIterator[bytes]:
    """The whole message with the fields of final delivery, in chunks, with LF as line end."""
    yield (trace(message) + message.header + b"\r\n").replace(b"\r\n", b"\n")
    held = b""
    async for chunk in message.body():
        data = held + chunk
        held = b"\r" if data.endswith(b"\r") else b""
        yield data[: len(data) - len(held)].replace(b"\r\n", b"\n")
    if held:
        yield held


def parts(address: str) -> dict[str, str]:
    """Values of the placeholders ``recipient``, ``user``, ``domain`` and ``extension`` in paths and arguments.

    ``extension`` is the text after the first ``+`` of the local part; ``user`` is the text before it.
    """
    local, _, domain = address.rpartition("@")
    user, _, extension = local.partition("+")
    return {
        "recipient": address,
        "user": user or local,
        "domain": domain,
        "extension": extension if user else "",
    }
