"""A sender process: requests come in over the link, sessions and DNS are here, results go back.

``python -m zonemta_py.processes.sender_process LEVEL BEAT_S LINK_FD``.

Life of a request::

    Deliver ─▶ session open ─ SessionOpened ─▶ start being written ─ Durable ─▶ final dot sent ─▶ Done
                                                └─ Cancel ─▶ no final dot ─▶ Done

Invariants:

- The final dot is not sent before ``started`` is done, that is before the queue's process has the start of the transaction on disk.
- Each Deliver has one Done, with a result or the text of an internal error, unless the link ends before.
- Frames behind a Configure wait until it was read, and are served under it; Durable, Chunk and Cancel of running requests do not wait.
- A configuration replaces the agents of all zones. One that cannot be used ends the process if it is the first; else the present one
  stays in use.
- A body of at most BODY_INLINE_MAX bytes comes with its request; of others one chunk is fetched ahead. A chunk has the number of its reading:
  those for a transaction that failed are dropped.
- The process ends when its link does: without the queue's process no result can be settled.

Callers: ``senders.SenderChild`` starts it and sends the frames of ``sender_protocol``; ``SmtpAgent`` executes the requests.

Example: ``Deliver(3, "default", request, body)`` runs ``agent.deliver``; ``Done(3, result, "", 1, 1)`` says that a session is idle now.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.logs import set_log_level
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.assembly import AssembledSending
from zonemta_py.delivery.dkim import DkimKeys, load_keys
from zonemta_py.delivery.session_pool import SessionsByPath, path_of
from zonemta_py.delivery.smtp_agent import SmtpAgent
from zonemta_py.processes import sender_protocol as protocol
from zonemta_py.processes.link import Link, LogLevel, SetTraces, Traced
from zonemta_py.processes.supervisor import child_main, not_configured
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts
from zonemta_py.smtp.mx_order import NO_MX_ANSWER
from zonemta_py.transports.tracing import TRACER

log = logging.getLogger(__name__)


class SenderProcess:
    """Executes the frames of the queue's process."""

    def __init__(self) -> None:
        self.link_lost = asyncio.Event()
        self.link = Link(pack, protocol.decode, self._receive, self.link_lost.set)
        self._requests: dict[int, LinkContext] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._agents: dict[str, SmtpAgent] = {}
        self._unreachable = SharedUnreachableHosts(self.link)
        self._sending = AssembledSending(self._unreachable, SessionsByPath())
        self._held: list[protocol.Frame] | None = (
            None  # what came behind a configuration that is being read
        )

    def close(self) -> None:
        """End what is looked up."""
        self._sending.close()

    def _receive(self, frame: protocol.Frame) -> None:
        if self._held is None or self._is_of_running_request(frame):
            self._handle(frame)
        else:
            self._held.append(frame)

    def _handle(self, frame: protocol.Frame) -> None:
        match frame:
            case protocol.Deliver():
                context = LinkContext(self.link, frame.number, frame.body)
                self._requests[frame.number] = context  # at once: its Cancel may be the next frame
                self._start(self._deliver(frame, context))
            case protocol.Resolve():
                self._start(self._resolve(frame))
            case protocol.Trim():
                self._start(self._trim(frame))
            case protocol.Durable():
                if frame.number in self._requests:
                    self._requests[frame.number].durable()
            case protocol.Chunk():
                if frame.number in self._requests:
                    self._requests[frame.number].chunk(frame)
            case protocol.Cancel():
                if frame.number in self._requests:
                    self._requests[frame.number].cancel()
            case protocol.HostStatus():
                self._unreachable.learn(frame)
            case protocol.ClearUnreachable():
                self._unreachable.clear(frame.ip or None, frame.destination or None)
            case LogLevel() | SetTraces():
                self._observe(frame)
            case protocol.Configure():
                self._held = []
                self._start(self._configure(frame))

    def _is_of_running_request(self, frame: protocol.Frame) -> bool:
        return (
            isinstance(frame, protocol.Durable | protocol.Chunk | protocol.Cancel)
            and frame.number in self._requests
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _trim(self, frame: protocol.Trim) -> None:
        agent = self._agents.get(frame.zone)
        if agent is not None:
            agent.pool.trim(frame.destination, frame.zone_limit, frame.destination_limit)
        await self._sending.sessions.trim(frame.path, frame.path_limits)
        self.link.send(protocol.Trimmed(frame.number))

    async def _resolve(self, frame: protocol.Resolve) -> None:
        agent = self._agents.get(frame.zone)
        answer = NO_MX_ANSWER if agent is None else await agent.resolve(frame.domain)
        self.link.send(protocol.Resolved(frame.number, answer))

    def _observe(self, frame: LogLevel | SetTraces) -> None:
        match frame:
            case LogLevel():
                set_log_level(frame.level)
            case SetTraces():
                TRACER.configure(self, frame.targets, lambda line: self.link.send(Traced(line)))

    async def _configure(self, frame: protocol.Configure) -> None:
        """Read a configuration in a thread, while running requests continue, and use it; then handle the frames that came behind it."""
        try:
            self._use(frame, *await asyncio.to_thread(_read, frame))
        except Exception as exc:
            not_configured(self.link, exc, has_other=bool(self._agents))
        else:
            self.link.send(protocol.Configured())
        held, self._held = self._held or [], None
        for waiting in held:
            self._receive(waiting)

    def _use(self, frame: protocol.Configure, config: Config, dkim_keys: DkimKeys) -> None:
        for old in self._agents.values():
            old.close()
        self._sending.configure(config, frame.hostname, dkim_keys)
        self._agents = {
            name: self._sending.agent(zone, partial(self._report_idle, name))
            for name, zone in config.zones.items()
        }

    def _report_idle(
        self, zone: str, destination: str, idle: int, path: PathKey, idle_there: int
    ) -> None:
        self.link.send(protocol.IdleSessions(zone, destination, idle, path, idle_there))

    async def _deliver(self, frame: protocol.Deliver, context: "LinkContext") -> None:
        result, problem, idle, there = None, "", 0, 0
        try:
            agent = self._agents[frame.zone]
            result = await agent.deliver(frame.request, context)
            idle = agent.pool.count(frame.request.destination)
            there = self._sending.sessions.count(path_of(frame.request.order))
        except QueueUnavailable as exc:  # it was cancelled
            problem = repr(exc)
        except Exception as exc:
            log.exception("a request failed by an internal error")
            problem = repr(exc)
        finally:
            del self._requests[frame.number]
        self.link.send(protocol.Done(frame.number, result, problem, idle, there))


def _read(frame: protocol.Configure) -> tuple[Config, DkimKeys]:
    """The configuration and its keys. Raises ConfigError."""
    config = parse_config(frame.text, Path(frame.path), frame.included)
    return config, load_keys(config.dkim)


class LinkContext:
    """The ``RequestContext`` of a request that came over the link."""

    def __init__(self, link: Link, number: int, body: bytes | None) -> None:
        self._link = link
        self._number = number
        self._body = body
        self._chunks: asyncio.Queue[protocol.Chunk] = asyncio.Queue()
        self._reading = 0
        self._durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started: Awaitable[None] = _Shielded(self._durable)

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body that came with the request, else chunks, fetched one ahead."""
        return self._body if self._body is not None else self._fetch()

    async def _fetch(self) -> AsyncIterator[bytes]:
        self._reading += 1
        self._link.send(protocol.FetchChunk(self._number, self._reading))
        while True:
            chunk = await self._chunks.get()
            if chunk.reading != self._reading:
                continue  # fetched ahead for a transaction that failed
            if chunk.problem:
                raise QueueCorrupt(chunk.problem)
            if not chunk.last:
                self._link.send(protocol.FetchChunk(self._number, self._reading))
            yield chunk.data
            if chunk.last:
                return

    def session_opened(self, opened: int) -> None:
        """The queue's process writes the start of the transaction, and answers."""
        self._link.send(protocol.SessionOpened(self._number, opened))

    def durable(self) -> None:
        """The start is on disk."""
        if not self._durable.done():
            self._durable.set_result(None)

    def cancel(self) -> None:
        """The start could not be written, or the relay is stopping: the final dot must not be sent."""
        if not self._durable.done():
            self._durable.set_exception(QueueUnavailable("the queue cannot be written"))
            self._durable.exception()

    def chunk(self, chunk: protocol.Chunk) -> None:
        """The answer to a FetchChunk."""
        self._chunks.put_nowait(chunk)


class _Shielded:
    """A future that can be awaited more than once, and is not cancelled with a task that awaits it."""

    def __init__(self, future: "asyncio.Future[None]") -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._future).__await__()


class SharedUnreachableHosts(UnreachableHosts):
    """Sends what this process finds out over ``link``; ``learn`` records what other processes found out."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def timed_out(
        self, pair: AddressPair, destination: str, now_s: float, times_s: Sequence[float], spread: float
    ) -> float:
        """Record that a host did not answer, and send it; returns for how many seconds it is skipped."""
        skip_s = super().timed_out(pair, destination, now_s, times_s, spread)
        self._link.send(protocol.HostStatus(*pair, destination, skip_s))
        return skip_s

    def answered(self, pair: AddressPair) -> None:
        """Record that a host answers again, and send it if it was unreachable."""
        if pair in self:
            super().answered(pair)
            self._link.send(protocol.HostStatus(*pair, "", -1.0))

    def learn(self, status: protocol.HostStatus) -> None:
        """Record ``status`` without sending it."""
        pair = AddressPair(status.source, status.ip, status.port)
        if status.skip_s < 0:
            super().answered(pair)
        else:
            self.apply(pair, status.destination, clock.monotonic_s(), status.skip_s)


async def run(beat_s: float, link_fd: int) -> None:
    """Serve until the link ends."""
    process = SenderProcess()
    await process.link.connect(link_fd, beat_s)
    await process.link_lost.wait()
    process.close()


if __name__ == "__main__":
    child_main(run)
