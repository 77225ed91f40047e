"""Writing reports into batches: what settles recipients, or ends a message, accepts the reports on them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zonemta_py.core.errors import LocalError
from zonemta_py.queue import transitions
from zonemta_py.queue.accept import Acceptor
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.batch import DoneCallback, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Note
from zonemta_py.queue.options import Reports
from zonemta_py.queue.outcome import AcceptedMessage, SettleEffects

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue


class ReportWriter:
    """Adds reports to batches of ``queue``. ``reports`` None: it was opened without a composer."""

    def __init__(self, queue: "Queue", reports: Reports | None, acceptor: Acceptor) -> None:
        self._queue = queue
        self._reports = reports
        self._acceptor = acceptor

    @property
    def composer(self) -> Reports:
        """The composer of reports. Raises LocalError when the queue was opened without one."""
        if self._reports is None:
            raise LocalError("the queue was opened without a composer of reports")
        return self._reports

    async def prepare(self, active: ActiveMessage) -> None:
        """Prepare the report that ``add_report`` or ``end_message`` may add, if it is on many recipients; then ``forget``."""
        if self._reports is not None:
            await self._reports.prepare(self._queue, active)

    def forget(self, active: ActiveMessage) -> None:
        """Forget what was prepared."""
        if self._reports is not None:
            self._reports.forget(active)

    def add_effects(self, batch: WriteBatch, effects: SettleEffects) -> list[DoneCallback]:
        """Events, entries of digests and reports of ``effects``; returns the callbacks for the end of the batch."""
        for event in effects.events:
            batch.record(event)
        for key, entry in effects.digests:
            batch.put_record(key, entry)
        batch.put_latest(effects.puts)
        return self.accept(batch, effects.reports)

    def accept(self, batch: WriteBatch, reports: Sequence[AcceptedMessage]) -> list[DoneCallback]:
        """Accept ``reports`` by ``batch``; returns the callbacks for its end."""
        return [self._acceptor.add(batch, report) for report in reports]

    def add_report(
        self, batch: WriteBatch, active: ActiveMessage, notes: Sequence[Note]
    ) -> list[DoneCallback]:
        """Accept the report on ``notes``, if there are any, and remove them, by ``batch``.

        Returns the callbacks for the end of the batch. Raises LocalError.
        """
        if not notes:
            return []
        callbacks = self.add_effects(batch, self.composer.report(self._queue, active, notes))
        for note in notes:
            batch.delete(keys.bounce_key(active.id, note.recipient_index))
        return callbacks

    def end_message(self, batch: WriteBatch, active: ActiveMessage) -> list[DoneCallback]:
        """End ``active`` by ``batch`` without a settle; failures that were noted are reported.

        Returns the callbacks for the end of the batch. Raises LocalError.
        """
        callbacks = self.add_report(batch, active, active.notes)
        transitions.last(batch, active.id, active.mark.chunks, ())
        return callbacks
