"""The queue as a receiver's sessions see it: every promise is kept at the other end of the link."""

from itertools import count
from weakref import WeakValueDictionary

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.events.schema import Event, encode
from zonemta_py.processes import receiver_protocol as frames
from zonemta_py.processes.link import Link
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.chunks import MessageWriter, Upload
from zonemta_py.queue.format.ids import MessageIds
from zonemta_py.queue.idempotency import KeyLookup


class RemoteQueue:
    """``QueueClient`` over ``link``. Message ids are made here, in a lane of their own."""

    def __init__(self, link: Link, welcome: frames.Welcome) -> None:
        self.failure: QueueUnavailable | None = None
        self._link = link
        self._boot = welcome.boot
        self._ids = MessageIds(welcome.node, welcome.floor, welcome.lane)
        self._numbers = count(1)
        self._promises: dict[int, CommitFuture] = {}
        self._lookups: dict[int, KeyLookup] = {}
        self._writers: WeakValueDictionary[str, Upload] = WeakValueDictionary()

    @property
    def idempotency_keys(self) -> "RemoteQueue":
        """The submission keys are asked for over the same link."""
        return self

    def handle(self, frame: frames.Ended | frames.Known) -> None:
        """An answer came."""
        if isinstance(frame, frames.Known):
            lookup = self._lookups.pop(frame.number)
            if frame.problem:
                lookup.set_exception(QueueUnavailable(frame.problem))
            else:
                lookup.answer(frame.busy, frame.known)
            return
        failure = QueueUnavailable(frame.problem) if frame.problem else None
        if frame.final:
            self.failure = failure
        future = self._promises.pop(frame.number)
        if failure is None:
            future.set_result()
        else:
            future.set_exception(failure)

    def _promise(self, promise: CommitFuture) -> int:
        number = next(self._numbers)
        self._promises[number] = promise
        return number

    def open_message(self) -> MessageWriter:
        """A writer whose chunks travel as they fill."""
        message = self._ids.next(clock.now_ms())
        return MessageWriter(message, self._boot, _Chunks(self, message), self._writers)

    def write(self, message: str, batch: WriteBatch) -> CommitFuture:
        """Have a part of a body written."""
        ops = [(key, value) for key, value in batch.ops if value is not None]
        self._link.send(frames.Write(self._promise(batch.future), message, ops))
        return batch.future

    def accept(self, writer: MessageWriter, new: NewMessage) -> CommitFuture:
        """Have the queue take responsibility."""
        promise, mark = CommitFuture(), writer.mark(0)
        self._link.send(
            frames.Accept(
                self._promise(promise), writer.id, new, mark.chunks, mark.size, mark.crc, writer.last
            )
        )
        return promise

    def abort(self, writer: MessageWriter) -> None:
        """Have what was written of a body removed."""
        if writer.chunks:
            self._link.send(frames.Abort(writer.id))

    def record(self, event: Event) -> None:
        """Put a fact into the ledger."""
        self._link.send(frames.Fact(encode(event)))

    def lookup(self, digest: str) -> KeyLookup:
        """What is known of a submission key, which stays free."""
        return self._ask(digest, take=False)

    def acquire(self, digest: str) -> KeyLookup:
        """Take a submission key unless another session has it."""
        return self._ask(digest, take=True)

    def _ask(self, digest: str, *, take: bool) -> KeyLookup:
        lookup, number = KeyLookup(), next(self._numbers)
        self._lookups[number] = lookup
        self._link.send(frames.Look(number, digest, take))
        return lookup

    def release(self, digest: str) -> None:
        """The session is done with the key."""
        self._link.send(frames.GiveBack(digest))


class _Chunks:
    """Where the writer of one message puts its batches."""

    def __init__(self, queue: RemoteQueue, message: str) -> None:
        self._queue = queue
        self._message = message

    @property
    def failure(self) -> QueueUnavailable | None:
        return self._queue.failure

    def submit(self, batch: WriteBatch) -> CommitFuture:
        return self._queue.write(self._message, batch)
