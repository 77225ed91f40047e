"""A receiver's process: listeners and sessions are here, what they store goes over the link.

``python -m zonemta_py.processes.receiver_process LEVEL BEAT_S LINK_FD LISTENING_FD…``. It ends when the link does:
without the queue's process nothing can be promised to a client.
"""

import asyncio
import socket
from collections.abc import Coroutine, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_config
from zonemta_py.core.codec import pack
from zonemta_py.intake.listener import Intake
from zonemta_py.processes import receiver_protocol as frames
from zonemta_py.processes.child_main import child_main
from zonemta_py.processes.link import Link
from zonemta_py.processes.remote_queue import RemoteQueue
from zonemta_py.routing import make_router


class ReceiverProcess:
    """What the frames of the queue's process ask for. ``sockets`` are those of all listeners, in order."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        self.over = asyncio.Event()
        self.link = Link(pack, frames.decode, self._handle, self.over.set)
        self._sockets = iter(sockets)
        self.queue: RemoteQueue | None = None
        self._intake: Intake | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Ended() | frames.Known():
                assert self.queue is not None
                self.queue.handle(frame)
            case frames.Welcome():
                self.queue = RemoteQueue(self.link, frame)
            case frames.Configure():
                self._configure(frame)
            case frames.Stop():
                self._soon(self._stop(frame.grace_s))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _configure(self, frame: frames.Configure) -> None:
        config = parse_config(frame.text, Path(frame.path))
        router = make_router(config)
        if self._intake is not None:
            self._intake.apply(self._intake.prepare(config, frame.hostname, router))
            return
        assert self.queue is not None
        sockets = [list(islice(self._sockets, size)) for size in frame.sockets]
        self._intake = intake = Intake(self.queue, sockets, frame.place, frame.receivers)
        policies = intake.prepare(config, frame.hostname, router)

        async def start() -> None:
            await intake.start(config, policies)
            self.link.send(frames.Ready())

        self._soon(start())

    async def _stop(self, grace_s: float) -> None:
        if self._intake is not None:
            await self._intake.drain(grace_s)
        self.link.send(frames.Drained())


async def run(beat_s: float, link_fd: int, *listening_fds: int) -> None:
    """Until the link ends."""
    process = ReceiverProcess(socket.socket(fileno=fd) for fd in listening_fds)
    await process.link.connect(link_fd, beat_s)
    await process.over.wait()


if __name__ == "__main__":
    child_main(run)
