"""A receiver process: listeners and sessions run here; what they store goes over the link.

``python -m zonemta_py.processes.receiver_process LEVEL BEAT_S LINK_FD LISTENING_FD…``.

Life of the process: linked ─ Welcome ─▶ queue known ─ Configure ─▶ listening (Ready) ─ Stop ─▶ drained (Drained) ─ link lost ─▶ ended.

Invariants:

- Nothing is stored here. A message is accepted when the CommitResult of its Accept says so, and the client gets 250 after that.
- Every request has a number, by which its answer finds the future that waits for it.
- A CommitResult that is ``final`` sets ``failure``: the queue cannot be written any more.
- Message ids are issued here, without a question: the worker index of the process, ``slot`` + 1, makes them unique.
- Configurations are used in their order, and a stop after them. A first one that cannot be used ends the process; instead of a later
  one the present one stays in use.
- Limits that are reached (``closed``), suspended tenants, verified domains and logins are copies; the queue's process decides.
- The process ends when its link does: without the queue's process no message can be accepted.

Callers: ``receivers.ReceiverChild`` starts it and sends the frames of ``receiver_protocol``; the sessions of ``AssembledIntake`` use
``RemoteQueue`` as they use a ``Queue``.

Example: a session has 64 KiB of a body. Its writer submits a batch, which goes as ``Write(7, message, ops)``; ``CommitResult(7, "", False)``
sets the result of the future.
"""

import asyncio
import socket
from collections.abc import Coroutine, Iterable
from itertools import count, islice
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.core.logs import set_log_level
from zonemta_py.events.schema import Event, encode
from zonemta_py.intake.listener import AssembledIntake
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.link import Link, LogLevel, SetTraces, Traced
from zonemta_py.processes.supervisor import child_main, not_configured
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.queue.format.keys import MessageIds
from zonemta_py.queue.messages import MessageWriter, Upload
from zonemta_py.queue.submitters.keys import KeyLookup, KeyQuestion
from zonemta_py.queue.submitters.limits import (
    Charge,
    LimitedClient,
    RecentLogins,
    SessionClaim,
    Use,
    WrongPasswords,
)
from zonemta_py.routing import make_router
from zonemta_py.storage.interface import Space
from zonemta_py.transports.tracing import TRACER

# ---- The queue as the sessions of a receiver process use it: every request goes over the link.

CLOSED_MAX = 10_000  # clients whose limits are known to be reached


class RemoteQueue:
    """``QueueClient`` over ``link``. Message ids are issued here, with a worker index of their own."""

    def __init__(self, link: Link, welcome: protocol.Welcome) -> None:
        self.failure: QueueUnavailable | None = None
        self.suspended: frozenset[str] = frozenset()
        self.verified: frozenset[tuple[str, str]] = frozenset()
        self.wrong_passwords = WrongPasswords(lambda network: link.send(protocol.WrongPassword(network)))
        self.recent_logins = RecentLogins(lambda *login: link.send(protocol.LoggedIn([login])))
        self._link = link
        self._boot = welcome.boot
        self._ids = MessageIds(welcome.node, welcome.last_id, welcome.worker)
        self._numbers = count(1)
        self._commits: dict[int, CommitFuture] = {}
        self._lookups: dict[int, KeyLookup] = {}
        self._charges: dict[int, tuple[LimitedClient, Charge]] = {}
        self._closed: dict[
            LimitedClient, tuple[float, str]
        ] = {}  # until when (monotonic), and the reply
        self._writers: WeakValueDictionary[str, Upload] = WeakValueDictionary()

    @property
    def submission_keys(self) -> "RemoteQueue":
        """The submission keys, over the same link."""
        return self

    @property
    def limits(self) -> "RemoteQueue":
        """The limits of what is submitted, over the same link."""
        return self

    def handle(self, frame: protocol.CommitResult | protocol.KeyState | protocol.ChargeResult) -> None:
        """Finish the future that ``frame`` answers."""
        if isinstance(frame, protocol.ChargeResult):
            client, charge = self._charges.pop(frame.number)
            if frame.closed_ms:
                if len(self._closed) >= CLOSED_MAX:
                    self._closed.clear()
                left_s = (frame.closed_ms - clock.now_ms()) / 1000
                self._closed[client] = clock.monotonic_s() + left_s, frame.refusal
            charge.answer(frame.refusal, frame.closed_ms)
            return
        if isinstance(frame, protocol.KeyState):
            lookup = self._lookups.pop(frame.number)
            if frame.problem:
                lookup.finish(QueueUnavailable(frame.problem))
            else:
                lookup.answer(frame.busy, frame.known)
            return
        failure = QueueUnavailable(frame.problem) if frame.problem else None
        if frame.final and failure is not None:  # a write that began before it may succeed after it
            self.failure = failure
        future = self._commits.pop(frame.number)
        if failure is None:
            future.finish()
        else:
            future.finish(failure)

    def _number_of(self, future: CommitFuture) -> int:
        number = next(self._numbers)
        self._commits[number] = future
        return number

    def open_message(self) -> MessageWriter:
        """A writer that sends its chunks as they fill."""
        message = self._ids.next(clock.now_ms())
        return MessageWriter(message, self._boot, _ChunkCommits(self, message), self._writers)

    def write(self, message: str, batch: WriteBatch) -> CommitFuture:
        """Write a part of a body."""
        ops = [(key, value) for key, value in batch.ops if value is not None]
        self._link.send(protocol.Write(self._number_of(batch.future), message, ops))
        return batch.future

    def accept(self, writer: MessageWriter, new: NewMessage) -> CommitFuture:
        """Take responsibility for a message."""
        future, mark = CommitFuture(), writer.mark(0)
        self._link.send(
            protocol.Accept(
                number=self._number_of(future),
                message=writer.id,
                new=new,
                chunks=mark.chunks,
                size=mark.size,
                crc=mark.crc,
                last=writer.last,
            )
        )
        return future

    def abort(self, writer: MessageWriter) -> None:
        """Remove the written chunks of a body."""
        if writer.chunks:
            self._link.send(protocol.Abort(writer.id))

    def record(self, event: Event) -> None:
        """Write an event that belongs to no accepted message."""
        self._link.send(protocol.RecordEvent(encode(event)))

    def closed(self, client: LimitedClient) -> str:
        """The reply to any message of ``client``, as far as it is known here."""
        until_s, refusal = self._closed.get(client, (0.0, ""))
        if until_s > clock.monotonic_s():
            return refusal
        self._closed.pop(client, None)
        return ""

    def forget_closed(self) -> None:
        """The limits may have changed."""
        self._closed.clear()

    def charge(self, client: LimitedClient, use: Use) -> Charge:
        """Count ``use`` unless it exceeds a limit."""
        charge, number = Charge(), next(self._numbers)
        self._charges[number] = client, charge
        self._link.send(protocol.ChargeUse(number, client, use))
        return charge

    def open_session(self, client: LimitedClient) -> SessionClaim:
        """Count a session that begins, unless there are too many."""
        number = next(self._numbers)
        claim = SessionClaim(lambda: self._link.send(protocol.UncountSession(number)))
        self._charges[number] = client, claim
        self._link.send(protocol.CountSession(number, client))
        return claim

    def lookup(self, question: KeyQuestion) -> KeyLookup:
        """Ask for the message that was accepted under a submission key, which stays free."""
        return self._look_up("lookup", question)

    def acquire(self, question: KeyQuestion) -> KeyLookup:
        """Ask the same, and take the key unless it is busy."""
        return self._look_up("acquire", question)

    def compare(self, question: KeyQuestion) -> KeyLookup:
        """Ask for the message that was accepted under a key that the session has."""
        return self._look_up("compare", question)

    def _look_up(self, verb: str, question: KeyQuestion) -> KeyLookup:
        lookup, number = KeyLookup(), next(self._numbers)
        self._lookups[number] = lookup
        self._link.send(protocol.LookUpKey(number, verb, question))
        return lookup

    def release(self, digest: str) -> None:
        """A key that was acquired is free again, for the queue's process before the client has its reply."""
        self._link.send(protocol.ReleaseKey(digest))
        self._link.flush()


class _ChunkCommits:
    """The ``Commits`` of one message's writer."""

    def __init__(self, queue: RemoteQueue, message: str) -> None:
        self._queue = queue
        self._message = message

    @property
    def failure(self) -> QueueUnavailable | None:
        return self._queue.failure

    def submit(self, batch: WriteBatch) -> CommitFuture:
        return self._queue.write(self._message, batch)


# ---- receiver process

SESSIONS_EVERY_S = 1.0


class ReceiverProcess:
    """Executes the frames of the queue's process. ``sockets`` are those of all listeners, in order."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self.link_lost = asyncio.Event()
        self.link = Link(pack, protocol.decode, self._handle, self.link_lost.set)
        self._sockets = iter(sockets)
        self.queue: RemoteQueue | None = None
        self._intake: AssembledIntake | None = None
        self._space: Space | None = None  # of a store with a limit of its own
        self._tasks: set[asyncio.Task[None]] = set()
        self._configuring = asyncio.Lock()  # configurations are used in their order, then a stop

    def _handle(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.CommitResult() | protocol.KeyState() | protocol.ChargeResult():
                assert self.queue is not None
                self.queue.handle(frame)
            case protocol.Welcome():
                self.queue = RemoteQueue(self.link, frame)
            case LogLevel():
                set_log_level(frame.level)
            case SetTraces():
                TRACER.configure(self, frame.targets, lambda line: self.link.send(Traced(line)))
            case protocol.Configure():
                self._spawn(self._configure(frame))
            case protocol.SuspendedTenants():
                assert self.queue is not None
                self.queue.suspended = frozenset(frame.names)
            case protocol.VerifiedDomains():
                assert self.queue is not None
                self.queue.verified = frozenset(frame.domains)
            case protocol.WrongPassword():
                assert self.queue is not None
                self.queue.wrong_passwords.learn(frame.network)
            case protocol.LoggedIn():
                assert self.queue is not None
                self.queue.recent_logins.learn_all(frame.logins)
            case protocol.SpaceLeft():
                self._space = Space(frame.free, frame.total)
            case protocol.Stop():
                self._spawn(self._stop(frame.grace_s))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _configure(self, frame: protocol.Configure) -> None:
        """Parse a configuration in a thread, while sessions continue, and use it."""
        async with self._configuring:
            try:
                path = Path(frame.path)
                self._use(frame, await asyncio.to_thread(parse_config, frame.text, path, frame.included))
            except Exception as exc:
                not_configured(self.link, exc, has_other=self._intake is not None)

    def _use(self, frame: protocol.Configure, config: Config) -> None:
        router = make_router(config)
        assert self.queue is not None
        self.queue.forget_closed()
        if self._intake is not None:
            self._intake.configure(config, self._intake.prepare(config, frame.hostname, router))
            return
        sockets = [list(islice(self._sockets, count)) for count in frame.sockets]
        intake = AssembledIntake(self.queue, config, lambda: self._space)
        intake.add_listeners(sockets, frame.slot, frame.receivers)
        contexts = intake.prepare(config, frame.hostname, router)
        self._intake = intake

        async def start() -> None:
            try:
                await intake.start(contexts)
            except Exception as exc:
                not_configured(self.link, exc, has_other=False)
                return
            self.link.send(protocol.Ready())
            await self._report_sessions(intake)

        self._spawn(start())

    async def _report_sessions(self, intake: AssembledIntake) -> None:
        reported = 0
        while not self.link_lost.is_set():
            if intake.sessions != reported:
                reported = intake.sessions
                self.link.send(protocol.OpenSessions(reported))
            await clock.wait_event(self.link_lost, SESSIONS_EVERY_S)

    async def _stop(self, grace_s: float) -> None:
        async with self._configuring:
            intake = self._intake
        if intake is not None:
            await intake.drain(grace_s)
            await intake.close()
        self.link.send(protocol.Drained())


async def run(beat_s: float, link_fd: int, *listening_fds: int) -> None:
    """Serve until the link ends."""
    process = ReceiverProcess(socket.socket(fileno=fd) for fd in listening_fds)
    await process.link.connect(link_fd, beat_s)
    await process.link_lost.wait()


if __name__ == "__main__":
    child_main(run)
