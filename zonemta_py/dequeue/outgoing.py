"""New mail from a channel program: recipients, then content, then ``finish`` or ``abort``.

States: recipients (``to``) ─ first content ─▶ content (``write``, ``copy``) ─ ``finish`` or ``abort`` ─▶ finished. A call out of this order
raises WrongOrder; content needs a recipient, ``finish`` needs content.

Invariants:

- It is accepted as all mail of programs is (``intake.inject``), and belongs to the tenant of the dequeued message.
- Mail that replaces a dequeued message keeps its envelope id and RET; a recipient taken from it keeps ORCPT and NOTIFY.
- Content is collected in pieces of PIECE_BYTES. The envelope is checked with the first piece: NotAccepted comes from a ``write``, or
  from ``finish``.
- The injector is used on the loop of the queue; ``Outgoing`` calls it through a ``Bridge``, from the routine's thread.

Callers: ``Message.start`` and ``AsyncMessage.start`` in a routine, ``standalone.Queue`` for mail of a program's own.

Example::

    new = message.start(zone="bulk")
    new.to("list@example.org", instead_of=message.recipient)
    new.copy(message)
    new.finish()  # the id of the new message

Source: MTA SDK, mtaEnqueue….
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from zonemta_py.core.errors import NotAccepted
from zonemta_py.dequeue.channel import Channels
from zonemta_py.dequeue.envelope import BadArgument, Info, NotInMessage, Recipient, WrongOrder
from zonemta_py.intake.inject import Injector, rcpt
from zonemta_py.routing import one_zone
from zonemta_py.smtp.address import AddressError, in_header, normalise
from zonemta_py.smtp.commands import Rcpt

PIECE_BYTES = 65_536
FIELDS = ("", "To", "Cc")


class Bridge(Protocol):
    """Calls from a routine's thread into the event loop of the queue."""

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Block until the coroutine ``work`` has run on the loop; returns its result, or raises its error."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Block until ``work`` was called on the loop; returns its result, or raises its error."""


class Original(Protocol):
    """The dequeued message that new mail replaces or copies."""

    @property
    def info(self) -> Info:
        """Its envelope, size and origin."""

    def holds(self, recipient: Recipient) -> bool:
        """True if ``recipient`` is one of this message."""

    def rewind(self) -> None:
        """Continue at the first line."""

    def lines(self) -> Iterator[bytes]:
        """The lines that were not read yet."""


class _Outgoing:
    """The common part of both kinds: the envelope, and content that is not written yet."""

    def __init__(
        self,
        channels: Channels,
        sender: str,
        zone: str | None,
        original: Original | None,
        *,
        ret: str = "",
        envid: str = "",
    ) -> None:
        if zone is not None:
            channels.require(zone)
        context = channels.context
        router = context.router if zone is None else one_zone(zone)
        self._injector = Injector(
            context.queue, router, context.config, context.hostname, disk_space=channels.disk_space
        )
        self._sender = sender
        self._original = original
        self._envid = original.info.envid if original is not None else envid
        self._ret = original.info.ret if original is not None else ret
        self._tenant = original.info.tenant if original is not None else ""
        self._recipients: list[Rcpt] = []
        self._fields: dict[str, list[str]] = {}
        self._pieces: list[bytes] = []
        self._pending_bytes = 0
        self._has_content = False
        self._begun = self._finished = False

    def to(
        self,
        address: str | Recipient,
        *,
        instead_of: Recipient | None = None,
        field: str = "",
        envelope: bool = True,
        notify: str = "",
        orcpt: str = "",
    ) -> None:
        """Add a recipient, before the first content.

        A ``Recipient`` of the dequeued message, or a new address ``instead_of`` one, keeps its ORCPT and
        NOTIFY; others have ``notify`` and ``orcpt``. ``field``: To or Cc, a header field to name it in; ``envelope=False``: only there.
        Raises WrongOrder, NotInMessage, BadArgument.
        """
        if self._finished or self._has_content:
            raise WrongOrder("recipients come before the content")
        if field not in FIELDS:
            raise BadArgument(f"{field!r} is not a header field for recipients; To and Cc are")
        kept = address if isinstance(address, Recipient) else instead_of
        if kept is not None and (self._original is None or not self._original.holds(kept)):
            raise NotInMessage(f"{kept.address!r} is not a recipient of the dequeued message")
        try:
            text = normalise(address.address if isinstance(address, Recipient) else address)
        except AddressError as exc:
            raise BadArgument(f"{address!r}: {exc}") from exc
        if envelope:
            self._recipients.append(
                Rcpt(text, kept.notify, kept.orcpt) if kept else _rcpt(text, notify, orcpt)
            )
        if field:
            self._fields.setdefault(field, []).append(in_header(text))

    def _put(self, data: bytes) -> bool:
        """Buffer ``data``; returns whether the buffer should be flushed. Raises WrongOrder."""
        if self._finished:
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
        self._pending_bytes += len(data)
        return self._pending_bytes >= PIECE_BYTES

    async def _flush(self) -> None:
        if not self._begun:
            self._begun = True
            own = self._tenant
            origin = self._injector.program_origin(tenant=own) if own else None
            await self._injector.begin(
                self._sender, self._recipients, ret=self._ret, envid=self._envid, origin=origin
            )
        data, self._pieces, self._pending_bytes = b"".join(self._pieces), [], 0
        await self._injector.write(data)
        await asyncio.sleep(0)  # lets other tasks run while a large message is copied

    async def _finish(self) -> str:
        if self._finished or not self._has_content:
            raise WrongOrder("there is no content" if not self._finished else "the new mail is finished")
        self._finished = True
        try:
            await self._flush()
            return await self._injector.finish()
        finally:
            self._injector.abort()

    def _abort(self) -> None:
        self._finished = True
        self._injector.abort()


def _rcpt(address: str, notify: str, orcpt: str) -> Rcpt:
    try:
        return rcpt(address, notify, orcpt)
    except NotAccepted as exc:
        raise BadArgument(str(exc)) from exc


class AsyncOutgoing(_Outgoing):
    """New mail from a coroutine."""

    async def write(self, data: bytes) -> None:
        """Add content of any length: header, empty line, body; lines end in LF or CRLF. Raises WrongOrder."""
        if self._put(data):
            await self._flush()

    async def write_line(self, line: bytes) -> None:
        """Add a line, given without its line end. Raises WrongOrder."""
        await self.write(line + b"\r\n")

    async def copy(self, message: Original, *, rewind: bool = False) -> None:
        """Add the remaining lines of a dequeued message; with ``rewind`` all of its lines. Raises WrongOrder."""
        if rewind:
            message.rewind()
        for line in message.lines():
            await self.write_line(line)

    async def finish(self) -> str:
        """Return the id of the new message once it is on disk. Raises NotAccepted, WrongOrder."""
        return await self._finish()

    async def abort(self) -> None:
        """Discard the new mail."""
        self._abort()


class Outgoing(_Outgoing):
    """New mail from a routine in a thread: ``AsyncOutgoing`` with blocking methods."""

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
        """Add content of any length; may block for a write to the queue. Raises WrongOrder, NotAccepted."""
        if self._put(data):
            self._bridge.wait(self._flush())

    def write_line(self, line: bytes) -> None:
        """Add a line, given without its line end. Raises WrongOrder, NotAccepted."""
        self.write(line + b"\r\n")

    def copy(self, message: Original, *, rewind: bool = False) -> None:
        """Add the remaining lines of a dequeued message; with ``rewind`` all of its lines."""
        if rewind:
            message.rewind()
        for line in message.lines():
            self.write_line(line)

    def finish(self) -> str:
        """Return the id of the new message once it is on disk. Raises NotAccepted, WrongOrder."""
        new: str = self._bridge.wait(self._finish())
        return new

    def abort(self) -> None:
        """Discard the new mail."""
        self._bridge.call(self._abort)
