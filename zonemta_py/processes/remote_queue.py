"""The queue as the sessions of a receiver process use it: every request goes over the link."""

from itertools import count
from weakref import WeakValueDictionary

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Event, encode
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.link import Link
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.chunks import MessageWriter, Upload
from zonemta_py.queue.format.ids import MessageIds
from zonemta_py.queue.intake_limits import Charge, LimitedClient, SessionClaim, Use
from zonemta_py.queue.logins import RecentLogins, WrongPasswords
from zonemta_py.queue.submission_keys import KeyLookup, KeyQuestion

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
                lookup.set_exception(QueueUnavailable(frame.problem))
            else:
                lookup.answer(frame.busy, frame.known)
            return
        failure = QueueUnavailable(frame.problem) if frame.problem else None
        if frame.final and failure is not None:  # a write that began before it may succeed after it
            self.failure = failure
        future = self._commits.pop(frame.number)
        if failure is None:
            future.set_result()
        else:
            future.set_exception(failure)

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
                self._number_of(future), writer.id, new, mark.chunks, mark.size, mark.crc, writer.last
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
        """What was accepted under a submission key, which stays free."""
        return self._look_up("lookup", question)

    def acquire(self, question: KeyQuestion) -> KeyLookup:
        """The same, and the key is taken unless it is busy."""
        return self._look_up("acquire", question)

    def compare(self, question: KeyQuestion) -> KeyLookup:
        """What was accepted under a key that the session has."""
        return self._look_up("compare", question)

    def _look_up(self, verb: str, question: KeyQuestion) -> KeyLookup:
        lookup, number = KeyLookup(), next(self._numbers)
        self._lookups[number] = lookup
        self._link.send(protocol.LookUpKey(number, verb, question))
        return lookup

    def release(self, digest: str) -> None:
        """A key that was acquired is free again."""
        self._link.send(protocol.ReleaseKey(digest))


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
