"""Writes encoded content into the queue, for ``queue.kannader``."""

from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.kannader.items import MailMetadata, QueuedMail, ScheduleInfo, id_of, to_ms
from zonemta_py.queue.queue import Queue
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.headers import HeaderSplitter
from zonemta_py.smtp.transparency import DotDecoder

_HERE = Origin("", "", "", "", "")


class Enqueuer:
    """The content of one message, and its destinations at ``commit``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._writer = queue.open_message()
        self._decoder = DotDecoder()
        self._splitter = HeaderSplitter()

    async def write(self, data: bytes) -> None:
        """Append encoded content. Raises QueueUnavailable."""
        body = self._splitter.feed(self._decoder.feed(data))
        await self._write(body)

    async def _write(self, body: bytes) -> None:
        if body:
            written = self._writer.write(body)
            if written is not None:
                await written

    async def commit(
        self, destinations: Sequence[tuple[MailMetadata, ScheduleInfo]]
    ) -> list[QueuedMail]:
        """Enqueue one item for each destination, in order, all or none. The content must have ended.

        Raises ValueError, QueueUnavailable.
        """
        if not self._decoder.done:
            raise ValueError("the content does not end with CRLF . CRLF")
        await self._write(self._splitter.finish())
        senders = {metadata.from_ for metadata, _ in destinations}
        if len(senders) != 1 or len({(m.to, m.zone) for m, _ in destinations}) != len(destinations):
            raise ValueError("one content has one sender, and each destination occurs once")
        new = NewMessage(
            sender=senders.pop() or "",
            header=self._splitter.header,
            recipients=[NewRecipient(m.to, domain_of(m.to), m.zone) for m, _ in destinations],
            origin=_HERE,
        )
        message, now_ms = self._writer.id, clock.now_ms()
        last = self._writer.last
        made = compose(message, new, self._writer.mark(now_ms), [last] if last else [])
        batch = WriteBatch()
        for recipient, (_, schedule) in zip(made.recipients, destinations, strict=True):
            due_ms = max(1, to_ms(schedule.at))
            recipient.key = keys.deferred_key(recipient.zone, message, recipient.address)
            recipient.record = recipient.record._replace(
                due_ms=due_ms, last_ms=to_ms(schedule.last_attempt)
            )
        transitions.accept(batch, made, now_ms)
        await self._queue.commits.submit(batch)
        return [
            QueuedMail(id_of(message, index), schedule, metadata.zone, metadata.to)
            for index, (metadata, schedule) in enumerate(destinations)
        ]

    async def abort(self) -> None:
        """Remove what was written."""
        batch = self._queue.abort(self._writer)
        if batch is not None:
            await batch
