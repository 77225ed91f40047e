"""What transports without a session have in common: one recipient at a time, the message as a stream.

A transport says what came of it as a ``Reply``, as a server would: 2xx delivered, 4xx later, 5xx never.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, Protocol

from zonemta_py.smtp.reply import Reply

DELIVERED = Reply(250, "2.0.0", "delivered")


class Parcel(NamedTuple):
    """A message for one recipient. ``body`` gives the chunks that follow the empty line, from the start each time.

    ``begin`` is awaited before anything is done that cannot be undone.
    """

    message: str
    sender: str
    recipient: str
    header: bytes
    body: Callable[[], AsyncIterator[bytes]]
    begin: Callable[[], Awaitable[None]]


class LocalTransport(Protocol):
    """One way to hand a message over without a session."""

    async def deliver(self, parcel: Parcel) -> Reply:
        """Hand it over. Raises only what ``body`` and ``begin`` raise."""

    def close(self) -> None:
        """No delivery follows."""


def trace(parcel: Parcel) -> bytes:
    """The fields of final delivery (RFC 5321 section 4.4, RFC 9228)."""
    return f"Return-Path: <{parcel.sender}>\r\nDelivered-To: {parcel.recipient}\r\n".encode()


async def lines(parcel: Parcel) -> AsyncIterator[bytes]:
    """The whole message with the fields of final delivery, in chunks, its lines ended as files end them (LF)."""
    yield (trace(parcel) + parcel.header + b"\r\n").replace(b"\r\n", b"\n")
    held = b""
    async for chunk in parcel.body():
        octets = held + chunk
        held = b"\r" if octets.endswith(b"\r") else b""
        yield octets[: len(octets) - len(held)].replace(b"\r\n", b"\n")
    if held:
        yield held


def parts(address: str) -> dict[str, str]:
    """What placeholders stand for in paths and arguments: ``recipient``, ``user``, ``domain``, ``extension``.

    ``extension`` is what follows the first ``+`` of the local part; ``user`` is without it.
    """
    local, _, domain = address.rpartition("@")
    user, _, extension = local.partition("+")
    return {
        "recipient": address,
        "user": user or local,
        "domain": domain,
        "extension": extension if user else "",
    }
