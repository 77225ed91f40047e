"""A message that a routine delivers: its recipients, then its lines, then the dispositions.

States: RECIPIENTS ─ all were read ─▶ LINES ─ ``finish``, ``abort`` or ``leave`` ─▶ FINISHED. It may be finished in RECIPIENTS, too.

Invariants:

- One thread owns a message, that of its routine (``own``); reading or settling it in another one raises WrongThread.
- A message is settled once: of the routine and the worker that leaves it, ``_claim_end`` lets the first settle it.
- Dispositions have no effect before ``finish``; then they are settled in one batch (``Channel.settle``).
- A recipient without a disposition is deferred, and so is each of a message that the routine does not finish.
- The header, one chunk of the body and one line are in memory. ``rewind`` reads the body again from its first byte.

Callers: the executors of ``dequeue.api`` make a message, call ``own`` and ``leave``; the routine calls the rest.

Example::

    for recipient in message.recipients():
        message.dispose(recipient.address, Disposition.DELIVERED)
    file.writelines(line + b"\\n" for line in message.lines())
    message.finish()

Source: MTA SDK, mtaDequeue….
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from enum import Enum, auto
from types import SimpleNamespace

from zonemta_py.dequeue.channel import Channel
from zonemta_py.dequeue.envelope import (
    Disposition,
    Info,
    NotInMessage,
    Recipient,
    RecipientVerdict,
    WrongOrder,
    WrongThread,
    checked,
)
from zonemta_py.dequeue.outgoing import AsyncOutgoing, Bridge, Outgoing
from zonemta_py.queue.format.records import born
from zonemta_py.queue.messages import Lease


class Lines:
    """The lines of header, empty line and body, without CRLF or LF; no empty line without a body.

    ``chunks`` returns the body from its first byte. One chunk and one line are held in memory.
    """

    def __init__(self, header: bytes, has_body: bool, chunks: Callable[[], Iterator[bytes]]) -> None:
        self._header = header
        self._has_body = has_body
        self._chunks = chunks
        self._lines = self._read()

    def next(self) -> bytes | None:
        """The next line, or None at the end."""
        return next(self._lines, None)

    def rewind(self) -> None:
        """Start again at the first line."""
        self._lines = self._read()

    def _read(self) -> Iterator[bytes]:
        yield from _split(iter((self._header,)))
        if self._has_body:
            yield b""
            yield from _split(self._chunks())


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        *lines, held = (held + chunk).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in lines)
    if held:
        yield held


class _State(Enum):
    RECIPIENTS = auto()
    LINES = auto()
    FINISHED = auto()


class _Message:
    """The common part of ``Message`` and ``AsyncMessage``. ``thread``: attributes of the routine's own.

    Every method raises WrongThread in another thread, and WrongOrder after the end.
    """

    def __init__(
        self,
        channel: Channel,
        lease: Lease,
        thread: SimpleNamespace,
        body: Callable[[], Iterator[bytes]],
    ) -> None:
        active = lease.active
        self._channel = channel
        self._lease = lease
        self._owner = threading.get_ident()
        self._ending = threading.Lock()
        self._state = _State.RECIPIENTS
        self._verdicts: dict[str, RecipientVerdict] = {}
        self._recipients = [
            Recipient(r.address, r.record.domain, r.record.orcpt, r.record.notify, r.record.attempts)
            for r in lease.recipients
        ]
        self._addresses = {recipient.address for recipient in self._recipients}
        self._known = frozenset(self._recipients)
        self._read = 0
        self._lines = Lines(active.meta.header, active.mark.size > 0, body)
        self.thread = thread
        self.sender = active.meta.sender
        origin = active.meta.origin
        self._info = Info(
            id=active.id, zone=lease.zone, sender=active.meta.sender, envid=active.meta.envid, ret=active.meta.ret,
            size_bytes=len(active.meta.header) + 2 + active.mark.size, accepted_ms=born(active.meta, active.id),
            user=origin.user, client_ip=origin.client_ip, protocol=origin.protocol, tenant=origin.tenant,
        )  # fmt: skip

    # ---- reading

    def next_recipient(self) -> Recipient | None:
        """The next recipient; None after the last, on every call."""
        self._check(_State.RECIPIENTS, _State.LINES)
        if self._read == len(self._recipients):
            if self._state is _State.RECIPIENTS:
                self._state = _State.LINES
            return None
        self._read += 1
        return self._recipients[self._read - 1]

    def recipients(self) -> Iterator[Recipient]:
        """The recipients that were not read yet."""
        while (recipient := self.next_recipient()) is not None:
            yield recipient

    def next_line(self) -> bytes | None:
        """The next line without its line end; None after the last. The header comes first, then an empty line.

        Raises WrongOrder before all recipients were read.
        """
        self._check(_State.LINES)
        return self._lines.next()

    def lines(self) -> Iterator[bytes]:
        """The lines from the current position to the end."""
        while (line := self.next_line()) is not None:
            yield line

    def rewind(self) -> None:
        """Continue at the first line of the header. Raises WrongOrder before all recipients were read."""
        self._check(_State.LINES)
        self._lines.rewind()

    @property
    def info(self) -> Info:
        """Envelope, size and origin of the message."""
        self._check(_State.RECIPIENTS, _State.LINES)
        return self._info

    @property
    def recipient(self) -> Recipient:
        """The recipient that was read last. Raises NotInMessage before the first."""
        self._check(_State.RECIPIENTS, _State.LINES)
        if not self._read:
            raise NotInMessage("no recipient was read yet")
        return self._recipients[self._read - 1]

    def holds(self, recipient: Recipient) -> bool:
        """True if ``recipient`` is a recipient of this message."""
        return recipient in self._known

    # ---- its end

    def dispose(self, address: str, disposition: int, reason: str = "") -> None:
        """Set the disposition of a recipient, for ``finish``; a later call replaces it.

        ``reason`` may begin with codes: ``550 5.1.1 no such user``. Raises BadArgument, NotInMessage.
        """
        self._check(_State.RECIPIENTS, _State.LINES)
        kind = checked(disposition)
        if address not in self._addresses:
            raise NotInMessage(f"{address!r} is not a recipient of {self._info.id} in this zone")
        self._verdicts[address] = RecipientVerdict(kind, str(reason))

    def _final(self, disposition: int | None, reason: str) -> dict[str, RecipientVerdict]:
        """The verdicts to settle; ``disposition``, unless None, replaces those of every recipient."""
        self._check(_State.RECIPIENTS, _State.LINES)
        if disposition is None:
            default = RecipientVerdict(
                Disposition.DEFERRED, str(reason) or "the program set no disposition for this recipient"
            )
            verdicts = {address: self._verdicts.get(address, default) for address in self._addresses}
        else:
            same = RecipientVerdict(checked(disposition), str(reason))
            verdicts = dict.fromkeys(self._addresses, same)
        if not self._claim_end():
            raise WrongOrder(f"{self._info.id} is finished")
        return verdicts

    def _claim_end(self) -> bool:
        """Mark the message as finished; True if the caller is the first to do so, and must settle it."""
        with self._ending:
            first, self._state = self._state is not _State.FINISHED, _State.FINISHED
        return first

    def own(self) -> None:
        """Make the calling thread the only one that may use the message."""
        self._owner = threading.get_ident()

    async def _settle(self, verdicts: Mapping[str, RecipientVerdict]) -> None:
        await self._channel.settle(self._lease, verdicts)

    async def leave(self) -> None:
        """Defer the message unless the routine has finished it; called when the routine has ended."""
        if self._claim_end():
            await self._settle({})

    def _check(self, *states: _State) -> None:
        if threading.get_ident() != self._owner:
            raise WrongThread(f"{self._info.id} belongs to another thread")
        if self._state in states:
            return
        if self._state is _State.RECIPIENTS:
            raise WrongOrder("read all recipients before the lines")
        raise WrongOrder(f"{self._info.id} is finished")


async def _next_chunk(stream: AsyncIterator[bytes]) -> bytes | None:
    async for chunk in stream:
        return chunk
    return None


class Message(_Message):
    """A message for a routine in a thread; only that thread may use it."""

    def __init__(self, channel: Channel, lease: Lease, thread: SimpleNamespace, bridge: Bridge) -> None:
        self._bridge = bridge
        super().__init__(channel, lease, thread, self._chunks)

    def _chunks(self) -> Iterator[bytes]:
        stream = self._channel.queue.bodies.stream(self._lease.active)
        while (chunk := self._bridge.wait(_next_chunk(stream))) is not None:
            yield chunk

    def finish(self, disposition: int | None = None, reason: str = "") -> None:
        """Settle the message by the dispositions set, or by ``disposition`` for every recipient.

        A recipient without a disposition is deferred. When this raises, every recipient is deferred.
        Afterwards only ``thread`` may be used. Raises BadArgument, QueueCorrupt, QueueUnavailable.
        """
        self._bridge.wait(self._settle(self._final(disposition, reason)))

    def abort(self, reason: str = "the program aborted the message") -> None:
        """Defer every recipient; dispositions set before have no effect."""
        self.finish(Disposition.DEFERRED, reason)

    def start(self, sender: str | None = None, *, zone: str | None = None) -> Outgoing:
        """New mail that keeps the DSN parameters of this message; ``sender``: None for the same.

        Raises NoSuchZone.
        """
        self._check(_State.RECIPIENTS, _State.LINES)
        chosen = self.sender if sender is None else sender
        return Outgoing(self._channel.channels, chosen, zone, self, self._bridge)


class AsyncMessage(_Message):
    """A message for a coroutine: ``Message`` with ``finish`` and ``abort`` as coroutines."""

    async def finish(self, disposition: int | None = None, reason: str = "") -> None:
        """Settle the message, as ``Message.finish`` does, with its errors."""
        await self._settle(self._final(disposition, reason))

    async def abort(self, reason: str = "the program aborted the message") -> None:
        """Defer every recipient; dispositions set before have no effect."""
        await self.finish(Disposition.DEFERRED, reason)

    def start(self, sender: str | None = None, *, zone: str | None = None) -> AsyncOutgoing:
        """New mail that keeps the DSN parameters of this message; ``sender``: None for the same.

        Raises NoSuchZone.
        """
        self._check(_State.RECIPIENTS, _State.LINES)
        chosen = self.sender if sender is None else sender
        return AsyncOutgoing(self._channel.channels, chosen, zone, self)
