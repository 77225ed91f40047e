"""One receiver process from outside: the bodies it writes, the submission keys it has taken."""

import asyncio
import logging
from collections.abc import Callable

from zonemta_py.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.processes import receiver_frames as frames
from zonemta_py.processes.child import Child
from zonemta_py.queue.commit import Batch
from zonemta_py.queue.promise import Promise
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.records import FORMAT, Mark

log = logging.getLogger(__name__)


class _Body:
    """An ``Upload`` whose octets come from elsewhere."""

    def __init__(self, message: str) -> None:
        self.id = message
        self.abandoned = False
        self.chunks = 0
        self.size = 0
        self.crc = 0
        self.last = b""

    def finish(self, accept: frames.Accept) -> None:
        """It is whole."""
        self.abandoned = self.abandoned or self.chunks + bool(accept.last) != accept.chunks
        self.size, self.crc, self.last = accept.size, accept.crc, accept.last

    def mark(self, created_ms: int) -> Mark:
        """Its marker."""
        return Mark(FORMAT, created_ms, self.size, self.chunks + bool(self.last), self.crc)


class ReceiverChild(Child):
    """A receiver for ``queue``."""

    kind = "receiver"
    module = "zonemta_py.processes.receiver_main"

    def __init__(self, place: int, queue: Queue, lost: Callable[["ReceiverChild"], None]) -> None:
        super().__init__(place, frames.decode, lost)
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()
        self._queue = queue
        self._bodies: dict[str, _Body] = {}
        self._taken: set[str] = set()

    def welcome(self) -> None:
        """Say whose queue this is."""
        queue = self._queue
        self.send(frames.Welcome(queue.node, queue.boot, queue.ids.last, self.place + 1))

    def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Accept():
                self._accept(frame)
            case frames.Write():
                self._write(frame)
            case frames.Abort():
                self._abort(self._bodies.pop(frame.message, None))
            case frames.Fact():
                batch = Batch()
                batch.events.append(frame.event)
                self._queue.commits.submit(batch)
            case frames.Look():
                self._look(frame)
            case frames.GiveBack():
                self._taken.discard(frame.digest)
                self._queue.submissions.give_back(frame.digest)
            case frames.Ready():
                if not self.ready.done():
                    self.ready.set_result(True)
            case frames.Drained():
                self.drained.set()

    def _write(self, frame: frames.Write) -> None:
        body = self._bodies.get(frame.message)
        if body is None:
            self._queue.ids.note(frame.message)
            body = self._bodies[frame.message] = _Body(frame.message)
            self._queue.uploads[frame.message] = body
        body.chunks += 1
        batch = Batch()
        batch.kinds.append("chunk")
        batch.patient = True
        for key, value in frame.ops:
            batch.put(key, value)
        self._answer(frame.number, self._queue.commits.submit(batch))

    def _accept(self, frame: frames.Accept) -> None:
        self._queue.ids.note(frame.message)
        body = self._bodies.pop(frame.message, None) or _Body(frame.message)
        body.finish(frame)
        if frame.new.key is not None:
            self._taken.discard(frame.new.key[0])  # the commit gives it back
        self._answer(frame.number, self._queue.accept(body, frame.new))

    def _answer(self, number: int, promise: Promise) -> None:
        def ended(failure: QueueUnavailable | None) -> None:
            final = self._queue.failure is not None
            self.send(frames.Ended(number, str(failure) if failure is not None else "", final))

        promise.then(ended)

    def _abort(self, body: _Body | None) -> None:
        if body is not None:
            self._queue.abort(body)

    def _look(self, frame: frames.Look) -> None:
        submissions = self._queue.submissions
        try:
            lookup = submissions.take(frame.digest) if frame.take else submissions.look(frame.digest)
        except QueueCorrupt as exc:
            log.critical("a submission key cannot be read: %s", exc)
            self.send(frames.Known(frame.number, False, None, str(exc)))
            return
        if frame.take and not lookup.busy:
            self._taken.add(frame.digest)
        self.send(frames.Known(frame.number, lookup.busy, lookup.known, ""))

    def _give_up(self) -> None:
        """Its sessions are gone: what they began leaves nothing behind."""
        for body in self._bodies.values():
            self._abort(body)
        self._bodies.clear()
        for digest in self._taken:
            self._queue.submissions.give_back(digest)
        self._taken.clear()
        self.drained.set()
        if not self.ready.done():
            self.ready.set_result(False)
