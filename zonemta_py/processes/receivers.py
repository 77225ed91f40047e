"""One receiver process from outside: the bodies it writes, the submission keys it has taken.

The receivers' processes as the queue's process sees them: their sockets, their start, their end.

The listening sockets stay open here, one for each place, so that a client which connects while a
receiver starts again waits in the socket's queue and is not refused.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from zonemta_py.config.schema import Config
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.processes import receiver_protocol as frames
from zonemta_py.processes.child import Child
from zonemta_py.processes.supervisor import ProcessSupervisor
from zonemta_py.queue.batch import CommitFuture, WriteBatch
from zonemta_py.queue.format.records import FORMAT, Mark
from zonemta_py.queue.queue import Queue

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
    module = "zonemta_py.processes.receiver_process"

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
                batch = WriteBatch()
                batch.events.append(frame.event)
                self._queue.commits.submit(batch)
            case frames.Look():
                self._look(frame)
            case frames.GiveBack():
                self._taken.discard(frame.digest)
                self._queue.idempotency_keys.release(frame.digest)
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
        batch = WriteBatch()
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

    def _answer(self, number: int, promise: CommitFuture) -> None:
        def ended(failure: QueueUnavailable | None) -> None:
            final = self._queue.failure is not None
            self.send(frames.Ended(number, str(failure) if failure is not None else "", final))

        promise.add_done_callback(ended)

    def _abort(self, body: _Body | None) -> None:
        if body is not None:
            self._queue.abort(body)

    def _look(self, frame: frames.Look) -> None:
        keys = self._queue.idempotency_keys
        try:
            lookup = keys.acquire(frame.digest) if frame.take else keys.lookup(frame.digest)
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
            self._queue.idempotency_keys.release(digest)
        self._taken.clear()
        self.drained.set()
        if not self.ready.done():
            self.ready.set_result(False)


START_S = 30.0  # for a process to say that it accepts connections
LAST_WORDS_S = 1.0  # for its own end, after the grace that it gives its sessions


class Receivers:
    """Receivers for ``queue``, each with its own sockets: ``sockets[place][listener]``."""

    def __init__(
        self,
        config: Config,
        hostname: str,
        queue: Queue,
        sockets: Sequence[Sequence[Sequence[socket.socket]]],
        log_level: str,
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._queue = queue
        self._sockets = sockets
        self._log_level = log_level
        self.staff = ProcessSupervisor("receiver", len(sockets), self._launch)

    async def start(self) -> None:
        """Start them all; they accept connections then. Raises LocalError."""
        await self.staff.start()

    async def _launch(self, place: int) -> ReceiverChild:
        child = ReceiverChild(place, self._queue, self.staff.lost)
        descriptors = [sock.fileno() for group in self._sockets[place] for sock in group]
        await child.start(self._log_level, descriptors)
        child.welcome()
        config = self._config
        child.send(self._configuration(place))
        try:
            await asyncio.wait([child.ready], timeout=START_S)
        except BaseException:
            child.abandon()
            raise
        if not child.ready.done() or not child.ready.result():
            await child.close()
            raise OSError(f"process {child.pid} did not get ready")
        if self._config is not config:  # reloaded meanwhile, when it was not among the children yet
            child.send(self._configuration(place))
        return child

    def _configuration(self, place: int) -> frames.Configure:
        config, sockets = self._config, self._sockets
        sizes = [len(group) for group in sockets[place]]
        return frames.Configure(config.text, config.path, self._hostname, place, len(sockets), sizes)

    def configure(self, config: Config, hostname: str) -> None:
        """Take over a new configuration."""
        self._config, self._hostname = config, hostname
        for child in self.staff.children:
            child.send_now(self._configuration(child.place))

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [child.pid for child in self.staff.children]

    async def drain(self, grace_s: float) -> None:
        """Take no more connections; transactions under way have ``grace_s``."""
        self.staff.stop()
        for child in self.staff.children:
            child.send(frames.Stop(grace_s))
        for sock in (sock for place in self._sockets for group in place for sock in group):
            sock.close()
        waits = [asyncio.ensure_future(child.drained.wait()) for child in self.staff.children]
        if waits:
            await asyncio.wait(waits, timeout=grace_s + LAST_WORDS_S)
            for wait in waits:
                wait.cancel()

    async def close(self) -> None:
        """End them."""
        await self.staff.close()
