"""A receiver process: listeners and sessions run here; what they store goes over the link.

``python -m zonemta_py.processes.receiver_process LEVEL BEAT_S LINK_FD LISTENING_FD…``. It ends when the
link does: without the queue's process no message can be accepted.
"""

import asyncio
import socket
from collections.abc import Coroutine, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.logs import set_log_level
from zonemta_py.intake.listener import Intake
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.processes import receiver_protocol as protocol
from zonemta_py.processes.child import child_main, not_configured
from zonemta_py.processes.link import Link, LogLevel, SetTraces, Traced
from zonemta_py.processes.remote_queue import RemoteQueue
from zonemta_py.routing import make_router
from zonemta_py.storage.disk_space import DiskSpace
from zonemta_py.storage.interface import Space
from zonemta_py.transports.tracing import TRACER

SESSIONS_EVERY_S = 1.0


class ReceiverProcess:
    """Executes the frames of the queue's process. ``sockets`` are those of all listeners, in order."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self.link_lost = asyncio.Event()
        self.link = Link(pack, protocol.decode, self._handle, self.link_lost.set)
        self._sockets = iter(sockets)
        self.queue: RemoteQueue | None = None
        self._intake: Intake | None = None
        self._scanner: MessageScanner | None = None
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
        """Sessions go on while a large configuration is parsed."""
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
        if self._intake is not None and self._scanner is not None:
            prepared = self._intake.prepare(config, frame.hostname, router)
            self._scanner.configure(config)
            self._intake.apply(prepared)
            return
        sockets = [list(islice(self._sockets, count)) for count in frame.sockets]
        settings = config.queue
        disk_space = DiskSpace(settings.directory, settings.min_free_disk, lambda: self._space)
        self._scanner = MessageScanner(config)
        intake = Intake(
            self.queue,
            sockets,
            frame.slot,
            frame.receivers,
            disk_space=disk_space,
            scanner=self._scanner,
        )
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

    async def _report_sessions(self, intake: Intake) -> None:
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
        if self._scanner is not None:
            await self._scanner.close()
        self.link.send(protocol.Drained())


async def run(beat_s: float, link_fd: int, *listening_fds: int) -> None:
    """Serve until the link ends."""
    process = ReceiverProcess(socket.socket(fileno=fd) for fd in listening_fds)
    await process.link.connect(link_fd, beat_s)
    await process.link_lost.wait()


if __name__ == "__main__":
    child_main(run)
