"""A sender's process: orders come in over the link, sessions and DNS are here, results go back.

``python -m zonemta_py.processes.sender_process LEVEL BEAT_S LINK_FD``. It ends when the link does: without the queue's
process nobody could settle what it sends.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Generator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config, Dkim
from zonemta_py.core import clock
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.delivery.dkim import Signer, load_keys
from zonemta_py.delivery.endpoints import EndpointResolver
from zonemta_py.delivery.mx import MxResolver
from zonemta_py.delivery.smtp_agent import SmtpAgent
from zonemta_py.processes import sender_protocol as frames
from zonemta_py.processes.child_main import child_main
from zonemta_py.processes.link import Link
from zonemta_py.schedule.unreachable import UnreachableHosts

log = logging.getLogger(__name__)


class _Errand:
    """An order's way back: its body, the word that its beginning is durable."""

    def __init__(self, link: Link, number: int, body: bytes | None) -> None:
        loop = asyncio.get_running_loop()
        self.link = link
        self._number = number
        self._body = body
        self._chunks: asyncio.Queue[frames.Chunk] = asyncio.Queue()
        self._reading = 0
        self._durable: asyncio.Future[None] = loop.create_future()
        self.started: Awaitable[None] = _Shielded(self._durable)

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body: here, or fetched a chunk ahead."""
        return self._body if self._body is not None else self._fetch()

    async def _fetch(self) -> AsyncIterator[bytes]:
        self._reading += 1
        self.link.send(frames.More(self._number, self._reading))
        while True:
            chunk = await self._chunks.get()
            if chunk.reading != self._reading:
                continue  # fetched ahead for a transaction that died
            if chunk.problem:
                raise QueueCorrupt(chunk.problem)
            if not chunk.last:
                self.link.send(frames.More(self._number, self._reading))
            yield chunk.data
            if chunk.last:
                return

    def opened(self) -> None:
        """There is a session; the queue's process writes the beginning."""
        self.link.send(frames.Opened(self._number))

    def durable(self) -> None:
        """It is on disk."""
        if not self._durable.done():
            self._durable.set_result(None)

    def give_up(self) -> None:
        """It will never be."""
        if not self._durable.done():
            self._durable.set_exception(QueueUnavailable("the queue cannot be written"))
            self._durable.exception()

    def chunk(self, chunk: frames.Chunk) -> None:
        """A chunk came."""
        self._chunks.put_nowait(chunk)


class _Shielded:
    """A future that may be awaited more than once and is not cancelled by whoever waits."""

    def __init__(self, future: "asyncio.Future[None]") -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.shield(self._future).__await__()


class _Dead(UnreachableHosts):
    """The dead addresses as this process knows them; what it finds goes to the others."""

    def __init__(self, tell: Link) -> None:
        super().__init__()
        self._tell = tell

    def timed_out(self, ip: str, now_s: float, spread: float) -> None:
        super().timed_out(ip, now_s, spread)
        self._tell.send(frames.Address(ip, spread))

    def answered(self, ip: str) -> None:
        if ip in self:
            super().answered(ip)
            self._tell.send(frames.Address(ip, -1.0))


class SenderProcess:
    """What the frames of the queue's process ask for."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.link = Link(pack, frames.decode, self._handle, self.over.set)
        self._errands: dict[int, _Errand] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._senders: dict[str, SmtpAgent] = {}
        self._dead = _Dead(self.link)
        self._rng = Random()
        self._signer = Signer(Dkim(), {})

    def _handle(self, frame: frames.Frame) -> None:
        match frame:
            case frames.Deliver():
                task = asyncio.create_task(self._deliver(frame))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case frames.Durable():
                if frame.number in self._errands:
                    self._errands[frame.number].durable()
            case frames.Chunk():
                if frame.number in self._errands:
                    self._errands[frame.number].chunk(frame)
            case frames.GiveUp():
                if frame.number in self._errands:
                    self._errands[frame.number].give_up()
            case frames.Trim():
                sender = self._senders.get(frame.zone)
                if sender is not None:
                    sender.pool.make_room(frame.destination, frame.in_zone, frame.at_destination)
                self.link.send(frames.Trimmed(frame.number))
            case frames.Address():
                self._address(frame)
            case frames.Forget():
                self._dead.clear(frame.ip or None)
            case frames.Configure():
                self._configure(frame)

    def _address(self, frame: frames.Address) -> None:
        """Another sender's finding."""
        if frame.spread < 0:
            UnreachableHosts.answered(self._dead, frame.ip)
        else:
            UnreachableHosts.timed_out(self._dead, frame.ip, clock.monotonic_s(), frame.spread)

    def _configure(self, frame: frames.Configure) -> None:
        config: Config = parse_config(frame.text, Path(frame.path))
        for old in self._senders.values():
            old.close()
        self._signer.configure(config.dkim, load_keys(config.dkim))
        ways = EndpointResolver(config, frame.hostname, MxResolver(config.resolver), self._rng)
        self._senders = {}
        for name, zone in config.zones.items():
            sender = SmtpAgent(zone, frame.hostname, ways, self._signer, self._dead, self._rng)
            sender.pool.changed = partial(self._rested, name, sender)
            self._senders[name] = sender

    def _rested(self, zone: str, sender: SmtpAgent, destination: str) -> None:
        """Sessions at rest ended."""
        self.link.send(frames.Resting(zone, destination, sender.pool.at(destination)))

    async def _deliver(self, deliver: frames.Deliver) -> None:
        errand = self._errands[deliver.number] = _Errand(self.link, deliver.number, deliver.body)
        sent, problem, resting = None, "", 0
        try:
            sender = self._senders[deliver.zone]
            sent = await sender.send(deliver.order, errand)
            resting = sender.pool.at(deliver.order.destination)
        except Exception as exc:
            log.exception("an order could not be carried out")
            problem = repr(exc)
        finally:
            del self._errands[deliver.number]
        self.link.send(frames.Done(deliver.number, sent, problem, resting))


async def run(beat_s: float, link_fd: int) -> None:
    """Until the link ends."""
    process = SenderProcess()
    await process.link.connect(link_fd, beat_s)
    await process.over.wait()


if __name__ == "__main__":
    child_main(run)
