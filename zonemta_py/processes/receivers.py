"""The receiver processes as the queue's process sees them: the pool, and one receiver.

States of a slot: started ─▶ welcomed and configured ─▶ ready ─ Stop ─▶ drained ─▶ ended. A process that ends earlier is followed by
another one in its slot (``ProcessSupervisor``).

Invariants:

- The listening sockets stay open here, a set for each slot: a client that connects while a receiver restarts waits in the socket's
  backlog and is not refused. Those of a slot whose receiver cannot start do not listen until one can.
- What an ended receiver had begun is undone: unfinished bodies are removed, submission keys released, sessions uncounted.
- A body is stored with its message only if as many chunks were written as its Accept says; else the upload is abandoned.
- Every receiver has the present configuration, suspended tenants and verified domains: they are sent again if they have changed
  while it started. Wrong passwords and logins that one receiver reports are sent to all others.
- Suspensions, verified domains and configurations are sent at once, so that a client that connects later sees their effect.

Callers: ``relay.intake_service`` makes the pool, reconfigures, drains and closes it.

Example: with two listeners and three receivers ``sockets[1][0]`` are the sockets of the first listener in the second receiver. A client
sends a message; frames ``Write`` and ``Accept`` arrive in its ``ReceiverChild``, which answers each with a ``CommitResult``.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from zonemta_py.config.schema import Config
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.link import LogLevel, SetTraces, Traced
from zonemta_py.processes.supervisor import ChildProcess, ProcessSupervisor
from zonemta_py.queue.commit import CommitFuture, WriteBatch
from zonemta_py.queue.format.records import FORMAT, BodyRecord
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.submitters.limits import SessionClaim
from zonemta_py.storage.open import CHECK_INTERVAL_S
from zonemta_py.transports.tracing import TRACER

log = logging.getLogger(__name__)


DRAIN_MARGIN_S = 1.0  # for Drained, after the grace that sessions have


class ReceiverPool:
    """Receivers for ``queue``, each with its own sockets: ``sockets[slot][listener]``."""

    def __init__(
        self,
        config: Config,
        hostname: str,
        queue: Queue,
        sockets: Sequence[Sequence[Sequence[socket.socket]]],
        log_target: str,
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._queue = queue
        self._sockets = sockets
        self._log_target = log_target
        self._reporting: asyncio.Task[None] | None = None
        self._sharing: list[asyncio.Task[None]] = []
        self._supervisor = ProcessSupervisor("receiver", len(sockets), self._launch)

    async def start(self) -> None:
        """Start all of them; they accept connections on return. Raises LocalError."""
        await self._supervisor.start()
        self._sharing = [
            asyncio.create_task(self._share_suspended(), name="suspended tenants"),
            asyncio.create_task(self._share_verified(), name="verified domains"),
        ]
        if self._queue.store.is_remote():
            self._reporting = asyncio.create_task(self._report_space(), name="space")

    async def _share_suspended(self) -> None:
        """Send each change of the suspended tenants to the receivers."""
        suspended = self._queue.suspended
        version = suspended.version
        while True:
            version = await suspended.wait_for_change(version)
            for child in self._supervisor.children:
                child.send_now(protocol.SuspendedTenants(suspended.submitters()))

    async def _share_verified(self) -> None:
        """Send each change of the verified domains to the receivers."""
        verified = self._queue.verified
        while True:
            await verified.changed.wait()
            verified.changed.clear()
            for child in self._supervisor.children:
                child.send_now(protocol.VerifiedDomains(verified.verified()))

    def _share(self, frame: protocol.WrongPassword | protocol.LoggedIn, source: "ReceiverChild") -> None:
        """Send the other receivers a wrong password or a login that one reports."""
        for child in self._supervisor.children:
            if child is not source:
                child.send(frame)

    async def _report_space(self) -> None:
        """Send the receivers, which have no store, its free space, every CHECK_INTERVAL_S."""
        while True:
            space = self._queue.store.space()
            if space is not None:
                for child in self._supervisor.children:
                    child.send(protocol.SpaceLeft(space.free, space.total))
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _launch(self, slot: int) -> "ReceiverChild":
        """Start the receiver of ``slot``. Raises OSError when it does not become ready."""
        child = ReceiverChild(slot, self._queue, self._supervisor.on_lost, self._share)
        descriptors = [sock.fileno() for group in self._sockets[slot] for sock in group]
        await child.start(self._log_target, descriptors)
        child.welcome()
        config = self._config
        child.send(protocol.SuspendedTenants(self._queue.suspended.submitters()))
        child.send(protocol.VerifiedDomains(self._queue.verified.verified()))
        child.send(self._configuration(slot))
        try:
            await child.wait_ready()
        except OSError:
            self._take_no_clients(slot)
            raise
        if self._config is not config:  # a reload happened before it was one of the children
            child.send(self._configuration(slot))
        child.send(
            protocol.SuspendedTenants(self._queue.suspended.submitters())
        )  # they may have changed, too
        child.send(protocol.VerifiedDomains(self._queue.verified.verified()))
        child.send(protocol.LoggedIn(self._queue.recent_logins.all()))
        child.send(SetTraces(sorted(TRACER.targets)))
        return child

    def _take_no_clients(self, slot: int) -> None:
        """Leave new clients to other receivers, or refuse them, until a receiver of ``slot`` listens again.

        A port that the system has chosen for a socket alone would be lost.
        """
        for settings, group in zip(self._config.listeners, self._sockets[slot], strict=True):
            for sock in group if settings.address.port or len(self._sockets) > 1 else ():
                with suppress(OSError):  # it does so already
                    sock.shutdown(socket.SHUT_RDWR)

    def _configuration(self, slot: int) -> protocol.Configure:
        config, sockets = self._config, self._sockets
        counts = [len(group) for group in sockets[slot]]
        return protocol.Configure(
            text=config.text,
            path=config.path,
            included=config.included,
            hostname=self._hostname,
            slot=slot,
            receivers=len(sockets),
            sockets=counts,
        )

    def configure(self, config: Config, hostname: str) -> None:
        """Send a new configuration to the receivers at once; those that start later get it, too."""
        self._config, self._hostname = config, hostname
        for child in self._supervisor.children:
            child.send_now(self._configuration(child.slot))

    def set_log_level(self, level: str) -> None:
        """Change what all processes log, also those that are started later."""
        self._log_target = ",".join((level, *self._log_target.split(",")[1:]))
        for child in self._supervisor.children:
            child.send(LogLevel(level))

    def set_traces(self, targets: list[str]) -> None:
        """Trace ``targets`` in all processes; ``_launch`` sends them to those that are started later."""
        for child in self._supervisor.children:
            child.send(SetTraces(targets))

    def missing(self) -> str:
        """Names of the processes that do not run, for an operator; empty when all do."""
        return self._supervisor.missing()

    @property
    def pids(self) -> list[int]:
        """The ids of the running processes."""
        return [child.pid for child in self._supervisor.children]

    @property
    def sessions(self) -> int:
        """The open sessions of clients."""
        return sum(child.sessions for child in self._supervisor.children)

    async def drain(self, grace_s: float) -> None:
        """Accept no connection any more; running transactions have ``grace_s`` to finish."""
        self._supervisor.stop_restarting()
        for child in self._supervisor.children:
            child.send(protocol.Stop(grace_s))
        for sock in (sock for slot in self._sockets for group in slot for sock in group):
            sock.close()
        waits = [asyncio.ensure_future(child.drained.wait()) for child in self._supervisor.children]
        if waits:
            await asyncio.wait(waits, timeout=grace_s + DRAIN_MARGIN_S)
            for wait in waits:
                wait.cancel()

    async def close(self) -> None:
        """End all processes, and wait for them."""
        for task in (self._reporting, *self._sharing):
            if task is not None:
                task.cancel()
        await self._supervisor.close()


class ReceiverChild(ChildProcess):
    """One receiver: the uploads of its sessions, the submission keys they hold, and which of them are counted."""

    kind = "receiver"
    module = "zonemta_py.processes.receiver_process"

    def __init__(
        self,
        slot: int,
        queue: Queue,
        on_lost: Callable[["ReceiverChild"], None],
        share: Callable[[protocol.WrongPassword | protocol.LoggedIn, "ReceiverChild"], None],
    ) -> None:
        super().__init__(slot, protocol.decode, on_lost)
        self._share = share
        self.drained = asyncio.Event()
        self._queue = queue
        self._uploads: dict[str, RemoteUpload] = {}
        self._acquired: set[str] = set()
        self._claims: dict[int, SessionClaim] = {}
        self.sessions = 0

    def welcome(self) -> None:
        """Send what the receiver's message ids are made of."""
        queue = self._queue
        self.send(protocol.Welcome(queue.node, queue.boot, queue.ids.last, self.slot + 1))

    def _handle(self, frame: protocol.Frame) -> None:
        match frame:
            case Traced():
                TRACER.hand_on(frame.line)
            case protocol.Accept():
                self._accept(frame)
            case protocol.Write():
                self._write(frame)
            case protocol.Abort():
                self._abort(self._uploads.pop(frame.message, None))
            case protocol.RecordEvent():
                self._queue.record_encoded(frame.event)
            case protocol.OpenSessions():
                self.sessions = frame.count
            case protocol.LookUpKey():
                self._look_up(frame)
            case protocol.ReleaseKey():
                self._acquired.discard(frame.digest)
                self._queue.submission_keys.release(frame.digest)
            case protocol.ChargeUse():
                charge = self._queue.limits.charge(frame.client, frame.use)
                self.send(protocol.ChargeResult(frame.number, charge.refusal, charge.closed_ms))
            case protocol.Ready():
                self.is_ready()
            case protocol.Drained():
                self.drained.set()
            case _:
                self._handle_client(frame)

    def _handle_client(self, frame: protocol.Frame) -> None:
        """Handle a frame about the clients of a receiver."""
        match frame:
            case protocol.CountSession():
                claim = self._queue.limits.open_session(frame.client)
                if not claim.refusal:
                    self._claims[frame.number] = claim
                self.send(protocol.ChargeResult(frame.number, claim.refusal, 0))
            case protocol.UncountSession():
                if (ended := self._claims.pop(frame.number, None)) is not None:
                    ended.close()
            case protocol.WrongPassword():
                self._queue.wrong_passwords.learn(frame.network)
                self._share(frame, self)
            case protocol.LoggedIn():
                self._queue.recent_logins.learn_all(frame.logins)
                self._share(frame, self)

    def _write(self, frame: protocol.Write) -> None:
        upload = self._uploads.get(frame.message)
        if upload is None:
            self._queue.ids.note(frame.message)
            upload = self._uploads[frame.message] = RemoteUpload(frame.message)
            self._queue.uploads[frame.message] = upload
        upload.chunks += 1
        batch = WriteBatch()
        batch.kinds.append("chunk")
        batch.may_wait = True
        for key, value in frame.ops:
            batch.put(key, value)
        self._answer(frame.number, self._queue.commits.submit(batch))

    def _accept(self, frame: protocol.Accept) -> None:
        self._queue.ids.note(frame.message)
        upload = self._uploads.pop(frame.message, None) or RemoteUpload(frame.message)
        upload.finish(frame)
        if frame.new.key is not None:
            self._acquired.discard(frame.new.key.digest)  # the queue releases it with the commit
        self._answer(frame.number, self._queue.accept(upload, frame.new))

    def _answer(self, number: int, future: CommitFuture) -> None:
        def committed(failure: QueueUnavailable | None) -> None:
            final = self._queue.failure is not None
            self.send(
                protocol.CommitResult(
                    number, str(failure) or repr(failure) if failure is not None else "", final
                )
            )

        future.add_done_callback(committed)

    def _abort(self, upload: "RemoteUpload | None") -> None:
        if upload is not None:
            self._queue.abort(upload)

    def _look_up(self, frame: protocol.LookUpKey) -> None:
        keys = self._queue.submission_keys
        try:
            verbs = {"lookup": keys.lookup, "acquire": keys.acquire, "compare": keys.compare}
            lookup = verbs[frame.verb](frame.question)
        except QueueCorrupt as exc:
            log.critical("a submission key cannot be read: %s", exc)
            self.send(protocol.KeyState(frame.number, False, None, str(exc)))
            return
        if frame.verb == "acquire" and not lookup.busy:
            self._acquired.add(frame.question.digest)
        self.send(protocol.KeyState(frame.number, lookup.busy, lookup.known, ""))

    def _abandon_work(self) -> None:
        """Its sessions are gone: remove their unfinished bodies, and release their keys."""
        for upload in self._uploads.values():
            self._abort(upload)
        self._uploads.clear()
        for digest in self._acquired:
            self._queue.submission_keys.release(digest)
        self._acquired.clear()
        for claim in self._claims.values():
            claim.close()
        self._claims.clear()
        self.drained.set()


class RemoteUpload:
    """An ``Upload`` whose chunks come over the link."""

    def __init__(self, message: str) -> None:
        self.id = message
        self.abandoned = False
        self.chunks = 0
        self.size = 0
        self.crc = 0
        self.last = b""

    def finish(self, accept: protocol.Accept) -> None:
        """The body is complete; one whose written chunks do not match ``accept`` is abandoned."""
        self.abandoned = self.abandoned or self.chunks + bool(accept.last) != accept.chunks
        self.size, self.crc, self.last = accept.size, accept.crc, accept.last

    def mark(self, created_ms: int) -> BodyRecord:
        """The record of the body; ``last`` counts as a chunk."""
        return BodyRecord(FORMAT, created_ms, self.size, self.chunks + bool(self.last), self.crc)
