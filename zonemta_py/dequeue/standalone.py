"""A queue in a program, without a relay: the program enqueues the mail and dequeues it."""

import asyncio
import socket
from collections.abc import AsyncIterable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from zonemta_py.config.schema import Config, Events, QueueSettings
from zonemta_py.core.errors import LocalError
from zonemta_py.delivery.report_composer import DeliveryContext, PendingReports
from zonemta_py.delivery.reports import BounceReporter, ReportSender
from zonemta_py.dequeue.channel import Channels
from zonemta_py.dequeue.outgoing import AsyncOutgoing
from zonemta_py.intake.inject import AcceptedId, EnqueueOptions, Injector, enqueue
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.queue import Queue as StoredQueue
from zonemta_py.routing import DEQUEUE_DESTINATION, make_router, one_zone


class Queue:
    """The queue in a directory, or that of a ``Config``; ``async with`` opens it for this process only.

    The event log is in the subdirectory ``events``. Programs may dequeue every zone. ``async with`` raises
    QueueLocked, QueueUnavailable, QueueCorrupt or LocalError when the queue cannot be opened.
    """

    def __init__(self, path: Path | str | Config) -> None:
        self.config = path if isinstance(path, Config) else _settings(Path(path))
        self._queue: StoredQueue | None = None
        self._channels: Channels | None = None
        self._exporter: Exporter | None = None
        self._reports: ReportSender | None = None

    async def __aenter__(self) -> "Queue":
        config = self.config
        hostname, router = config.hostname or socket.getfqdn(), make_router(config)
        pending = PendingReports()
        self._queue = queue = open_queue(
            config,
            reports=BounceReporter(config, hostname, router, pending=pending),
            standby=config.queue.shared.take_over,
            destination_of=lambda zone, domain: DEQUEUE_DESTINATION,
            on_ready=self._on_ready,
        )
        try:
            await queue.recover()
            context = DeliveryContext(queue, config, hostname, router, pending=pending)
            self._channels = Channels(context, asyncio.get_running_loop(), all_zones=True)
            self._exporter = Exporter(queue, config.events)
            await self._exporter.start()
            self._reports = ReportSender(context)
            await self._reports.start()
            await queue.begin()
            await context.held_mail.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        channels, self._channels = self._channels, None
        if channels is not None:
            await channels.close(self.config.shutdown_grace)
        queue, self._queue = self._queue, None
        try:
            if self._reports is not None:
                await self._reports.close()
            if self._exporter is not None:
                await self._exporter.close()
        finally:
            if queue is not None:
                await queue.close()

    def _on_ready(self, zone: str, destination: str, light: bool) -> None:
        if self._channels is not None:
            self._channels.wake(zone)

    @property
    def channels(self) -> Channels:
        """The zones, for ``dequeue``. Raises LocalError when the queue is not open."""
        if self._channels is None:
            raise LocalError("the queue is not open: use it inside `async with Queue(…) as queue:`")
        return self._channels

    async def enqueue(
        self,
        sender: str,
        recipients: Iterable[str],
        message: bytes | AsyncIterable[bytes],
        **options: Unpack[EnqueueOptions],
    ) -> AcceptedId:
        """Add a message to a zone, ``default`` without one; returns its queue id once it is on disk.

        See ``Relay.enqueue``. Raises NotAccepted, NoSuchZone; LocalError when the queue is not open.
        """
        channels, zone = self.channels, options.get("zone", "default")
        channels.zone(zone)
        context = channels.context
        injector = Injector(
            context.queue, one_zone(zone), self.config, context.hostname, disk_space=channels.disk_space
        )
        return await enqueue(injector, sender, recipients, message, **options)

    def start(
        self, sender: str, *, zone: str = "default", ret: str = "", envid: str = ""
    ) -> AsyncOutgoing:
        """New mail, written in pieces: ``to``, ``write``, ``finish``. Raises NoSuchZone."""
        self.channels.zone(zone)
        return AsyncOutgoing(self.channels, sender, zone, None, ret=ret, envid=envid)


def _settings(path: Path) -> Config:
    return replace(
        Config(listeners=()),
        queue=QueueSettings(directory=path),
        events=Events(directory=path / "events"),
    )
