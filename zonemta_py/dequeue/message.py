"""A stored message line by line, in the memory of one chunk. Pure.

One message in a routine's hands: recipients, then lines, then what became of them.

A state machine: RECIPIENTS until all were read, LINES until ``finish`` or ``abort``, then OVER. What is
not finished is deferred. Source: MTA SDK, mtaDequeue….
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from types import SimpleNamespace

from zonemta_py.dequeue.channel import Channel
from zonemta_py.dequeue.disposition import Disposition, Said, checked
from zonemta_py.dequeue.envelope import Info, Recipient
from zonemta_py.dequeue.errors import NotInMessage, WrongOrder, WrongThread
from zonemta_py.dequeue.outgoing import AsyncOutgoing, Bridge, Outgoing
from zonemta_py.queue.active import Lease
from zonemta_py.queue.format.records import born


class Lines:
    """The lines of header, empty line and body, without CRLF or LF; no empty line when there is no body.

    ``chunks`` begins the body from its first octet.
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
        """Begin again."""
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
    OVER = auto()


class _Message:
    """What a routine in a thread and a coroutine have in common. ``thread`` is theirs to keep things in."""

    def __init__(
        self, channel: Channel, lease: Lease, thread: SimpleNamespace, bridge: Bridge | None
    ) -> None:
        active = lease.active
        self._channel = channel
        self._lease = lease
        self._bridge = bridge
        self._owner = threading.get_ident()
        self._ending = threading.Lock()
        self._state = _State.RECIPIENTS
        self._said: dict[str, Said] = {}
        self._recipients = [
            Recipient(r.address, r.record.domain, r.record.orcpt, r.record.notify, r.record.attempts)
            for r in lease.recipients
        ]
        self._addresses = {recipient.address for recipient in self._recipients}
        self._known = frozenset(self._recipients)
        self._read = 0
        self._lines = Lines(active.meta.header, active.mark.size > 0, self._chunks)
        self.thread = thread
        self.sender = active.meta.sender
        origin = active.meta.origin
        self._info = Info(
            active.id, lease.zone, active.meta.sender, active.meta.envid, active.meta.ret,
            len(active.meta.header) + 2 + active.mark.size, born(active.meta, active.id),
            origin.user, origin.client_ip, origin.protocol,
        )  # fmt: skip

    # ---- reading

    def next_recipient(self) -> Recipient | None:
        """The next recipient; None after the last, again and again."""
        self._check(_State.RECIPIENTS, _State.LINES)
        if self._read == len(self._recipients):
            if self._state is _State.RECIPIENTS:
                self._state = _State.LINES
            return None
        self._read += 1
        return self._recipients[self._read - 1]

    def recipients(self) -> Iterator[Recipient]:
        """Those that were not read yet."""
        while (recipient := self.next_recipient()) is not None:
            yield recipient

    def next_line(self) -> bytes | None:
        """The next line without its end; None after the last. The header comes first, then an empty line."""
        self._check(_State.LINES)
        return self._lines.next()

    def lines(self) -> Iterator[bytes]:
        """Those from here to the end."""
        while (line := self.next_line()) is not None:
            yield line

    def rewind(self) -> None:
        """Read from the first line of the header again."""
        self._check(_State.LINES)
        self._lines.rewind()

    @property
    def info(self) -> Info:
        """What is known of the message."""
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
        """Whether ``recipient`` is one of this message's."""
        return recipient in self._known

    def _chunks(self) -> Iterator[bytes]:
        chunks = self._channel.queue.body(self._lease.active)
        if self._bridge is None or self._channel.queue.store.is_remote():
            yield from chunks
            return
        while (chunk := self._bridge.call(lambda: next(chunks, None))) is not None:
            yield chunk

    # ---- its end

    def dispose(self, address: str, disposition: int, reason: str = "") -> None:
        """What became of a recipient; the last word counts, when the message is finished.

        ``reason`` may begin with codes: ``550 5.1.1 no such user``. Raises BadArgument, NotInMessage.
        """
        self._check(_State.RECIPIENTS, _State.LINES)
        word = checked(disposition)
        if address not in self._addresses:
            raise NotInMessage(f"{address!r} is no recipient of {self._info.id} in this zone")
        self._said[address] = Said(word, str(reason))

    def _final(self, disposition: int | None, reason: str) -> dict[str, Said]:
        """What ``finish`` settles: ``disposition``, if there is one, counts for everybody."""
        self._check(_State.RECIPIENTS, _State.LINES)
        if disposition is None:
            unsaid = Said(
                Disposition.DEFERRED, str(reason) or "the program said nothing about this recipient"
            )
            said = {address: self._said.get(address, unsaid) for address in self._addresses}
        else:
            said = dict.fromkeys(self._addresses, Said(checked(disposition), str(reason)))
        if not self._claim_end():
            raise WrongOrder(f"{self._info.id} is finished")
        return said

    def _claim_end(self) -> bool:
        """Whether this is the one end of the message: a routine's, or its thread's when it left none."""
        with self._ending:
            first, self._state = self._state is not _State.OVER, _State.OVER
        return first

    def own(self) -> None:
        """The calling thread is the one that may use it."""
        self._owner = threading.get_ident()

    async def _settle(self, said: Mapping[str, Said]) -> None:
        await self._channel.settle(self._lease, said)

    async def leave(self) -> None:
        """The routine is over, and says so itself: whatever it did not finish is deferred."""
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


class Message(_Message):
    """A message for a routine in a thread, which alone may use it."""

    _bridge: Bridge

    def finish(self, disposition: int | None = None, reason: str = "") -> None:
        """Carry out the dispositions, or ``disposition`` for everybody; what was said nothing of is deferred.

        When it raises, everybody is deferred. Nothing may be called afterwards but ``thread``.
        """
        self._bridge.wait(self._settle(self._final(disposition, reason)))

    def abort(self, reason: str = "the program gave the message back") -> None:
        """Defer everybody, whatever was said of them."""
        self.finish(Disposition.DEFERRED, reason)

    def start(self, sender: str | None = None, *, zone: str | None = None) -> Outgoing:
        """New mail that takes over what this message's sender asked; ``sender``: None for the same."""
        self._check(_State.RECIPIENTS, _State.LINES)
        chosen = self.sender if sender is None else sender
        return Outgoing(self._channel.channels, chosen, zone, self, self._bridge)


class AsyncMessage(_Message):
    """A message for a coroutine; as ``Message``, and its end is awaited."""

    async def finish(self, disposition: int | None = None, reason: str = "") -> None:
        """See ``Message.finish``."""
        await self._settle(self._final(disposition, reason))

    async def abort(self, reason: str = "the program gave the message back") -> None:
        """See ``Message.abort``."""
        await self.finish(Disposition.DEFERRED, reason)

    def start(self, sender: str | None = None, *, zone: str | None = None) -> AsyncOutgoing:
        """See ``Message.start``."""
        self._check(_State.RECIPIENTS, _State.LINES)
        chosen = self.sender if sender is None else sender
        return AsyncOutgoing(self._channel.channels, chosen, zone, self)
