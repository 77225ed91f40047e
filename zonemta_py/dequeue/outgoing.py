"""New mail from a channel program: recipients, then content, then ``finish`` or ``abort``.

It takes the way of all mail of programs (``intake.programs``). Mail that stands for a dequeued message
takes over its envelope id and RET, and each recipient's ORCPT and NOTIFY. Source: MTA SDK, mtaEnqueue….
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from zonemta_py.dequeue.channel import Channels
from zonemta_py.dequeue.envelope import Info, Recipient
from zonemta_py.dequeue.errors import BadArgument, NotInMessage, WrongOrder
from zonemta_py.intake.inject import Injector
from zonemta_py.routing import one_zone
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.smtp.commands import Rcpt

PIECE_BYTES = 65_536
FIELDS = ("", "To", "Cc")


class Bridge(Protocol):
    """From a routine's thread to the loop of the queue."""

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of ``work``, carried out on the loop."""

    def call(self, work: Callable[[], Any]) -> Any:
        """The result of ``work``, called on the loop."""


class Original(Protocol):
    """The dequeued message that new mail stands for, or copies."""

    @property
    def info(self) -> Info:
        """What is known of it."""

    def holds(self, recipient: Recipient) -> bool:
        """Whether it is one of its recipients."""

    def rewind(self) -> None:
        """Read it from the top."""

    def lines(self) -> Iterator[bytes]:
        """What was not read yet."""


class _Outgoing:
    """What both kinds have in common: the envelope, and what was not handed over yet."""

    def __init__(
        self, channels: Channels, sender: str, zone: str | None, original: Original | None
    ) -> None:
        if zone is not None:
            channels.accepts(zone)
        outbound = channels.outbound
        router = outbound.router if zone is None else one_zone(zone)
        self._handover = Injector(outbound.queue, router, outbound.config, outbound.hostname)
        self._sender = sender
        self._original = original
        self._envid = original.info.envid if original is not None else ""
        self._ret = original.info.ret if original is not None else ""
        self._recipients: list[Rcpt] = []
        self._fields: dict[str, list[str]] = {}
        self._pieces: list[bytes] = []
        self._held = 0
        self._has_content = False
        self._begun = self._over = False

    def to(
        self,
        address: str | Recipient,
        *,
        instead_of: Recipient | None = None,
        field: str = "",
        envelope: bool = True,
    ) -> None:
        """One more recipient, before the first content.

        A ``Recipient`` of the dequeued message, or a new address ``instead_of`` one, keeps its ORCPT and
        NOTIFY. ``field``: To or Cc, to name it in the header too; not ``envelope``: there alone.
        Raises WrongOrder, NotInMessage, BadArgument.
        """
        if self._over or self._has_content:
            raise WrongOrder("recipients come before the content")
        if field not in FIELDS:
            raise BadArgument(f"{field!r} is no header field for an address: To and Cc are")
        kept = address if isinstance(address, Recipient) else instead_of
        if kept is not None and (self._original is None or not self._original.holds(kept)):
            raise NotInMessage(f"{kept.address!r} is no recipient of the dequeued message")
        try:
            text = normalise(address.address if isinstance(address, Recipient) else address)
        except AddressError as exc:
            raise BadArgument(f"{address!r}: {exc}") from exc
        if envelope:
            self._recipients.append(Rcpt(text, kept.notify, kept.orcpt) if kept else Rcpt(text))
        if field:
            self._fields.setdefault(field, []).append(text)

    def _put(self, data: bytes) -> bool:
        """Keep ``data``; whether so much is kept that it should be handed over."""
        if self._over:
            raise WrongOrder("the new mail is finished")
        if not self._recipients:
            raise WrongOrder("name a recipient before the content")
        if not data:
            return False
        if not self._has_content:
            self._has_content = True
            fields = self._fields.items()
            data = b"".join(f"{name}: {', '.join(each)}\r\n".encode() for name, each in fields) + data
        self._pieces.append(data)
        self._held += len(data)
        return self._held >= PIECE_BYTES

    async def _flush(self) -> None:
        if not self._begun:
            self._begun = True
            await self._handover.begin(self._sender, self._recipients, ret=self._ret, envid=self._envid)
        data, self._pieces, self._held = b"".join(self._pieces), [], 0
        await self._handover.write(data)
        await asyncio.sleep(0)  # others run while much is copied

    async def _finish(self) -> str:
        if self._over or not self._has_content:
            raise WrongOrder("there is no content" if not self._over else "the new mail is finished")
        self._over = True
        try:
            await self._flush()
            return await self._handover.finish()
        finally:
            self._handover.abort()

    def _abort(self) -> None:
        self._over = True
        self._handover.abort()


class AsyncOutgoing(_Outgoing):
    """New mail from a coroutine."""

    async def write(self, data: bytes) -> None:
        """More content, of any length: header, empty line, body; lines end in LF or CRLF."""
        if self._put(data):
            await self._flush()

    async def write_line(self, line: bytes) -> None:
        """A whole line, without its end."""
        await self.write(line + b"\r\n")

    async def copy(self, message: Original, *, rewind: bool = False) -> None:
        """The rest of a dequeued message from where it was read to; all of it after ``rewind``."""
        if rewind:
            message.rewind()
        for line in message.lines():
            await self.write_line(line)

    async def finish(self) -> str:
        """The new message's id, once it is on disk. Raises NotAccepted, WrongOrder."""
        return await self._finish()

    async def abort(self) -> None:
        """Leave nothing of it."""
        self._abort()


class Outgoing(_Outgoing):
    """New mail from a routine in a thread; as ``AsyncOutgoing``."""

    def __init__(
        self,
        channels: Channels,
        sender: str,
        zone: str | None,
        original: Original | None,
        bridge: Bridge,
    ) -> None:
        super().__init__(channels, sender, zone, original)
        self._bridge = bridge

    def write(self, data: bytes) -> None:
        """See ``AsyncOutgoing.write``."""
        if self._put(data):
            self._bridge.wait(self._flush())

    def write_line(self, line: bytes) -> None:
        """See ``AsyncOutgoing.write_line``."""
        self.write(line + b"\r\n")

    def copy(self, message: Original, *, rewind: bool = False) -> None:
        """See ``AsyncOutgoing.copy``."""
        if rewind:
            message.rewind()
        for line in message.lines():
            self.write_line(line)

    def finish(self) -> str:
        """See ``AsyncOutgoing.finish``."""
        new: str = self._bridge.wait(self._finish())
        return new

    def abort(self) -> None:
        """See ``AsyncOutgoing.abort``."""
        self._bridge.call(self._abort)
