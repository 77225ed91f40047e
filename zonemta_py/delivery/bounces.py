"""Reports to the envelope sender: which are due in the batch that settles the recipients they are about."""

import logging
from collections.abc import Sequence
from contextlib import suppress

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import OutcomeKind
from zonemta_py.delivery.context import DeliveryContext
from zonemta_py.delivery.outcome import delayed_note, has_reader, report_notes
from zonemta_py.delivery.pending_reports import PendingReports
from zonemta_py.delivery.report_composer import SLICE, ReportComposer, is_headers_only, prepare_report
from zonemta_py.events.schema import Discarded
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.format.keys import DEFERRED, HELD_MS, end_of, parse_recipient, zone_prefix
from zonemta_py.queue.format.records import Note, read_recipient_record
from zonemta_py.queue.outcome import NO_EFFECTS, Outcome, SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router

REASON_MAX = 200  # characters, of the reason for which no report could be composed
ALSO_DELAYED_MAX = 50  # further recipients that a warning names

_FAILURES = (OutcomeKind.BOUNCED, OutcomeKind.EXPIRED, OutcomeKind.LAPSED)

log = logging.getLogger(__name__)


async def settle_effects(
    context: DeliveryContext, zone: Zone, active: ActiveMessage, outcomes: Sequence[Outcome]
) -> SettleEffects:
    """The reports that settling ``outcomes`` causes, or notes for a report at the end of the message.

    The settle must follow without a turn of the loop: the result depends on whether the message ends.
    A defect in composing reports is logged: the outcomes count without a report.
    """
    try:
        if len(active.notes) > SLICE and context.queue.is_last(active, outcomes):
            await prepare_report(context, zone, active)
        failed = active.notes or any(outcome.kind in _FAILURES for outcome in outcomes)
        if failed and not is_headers_only(active, zone.bounce):
            with suppress(QueueCorrupt):  # then the report does not contain the body
                await context.queue.bodies.prefetch(active, zone.bounce.max_bytes)
        return _settle_effects(context, zone, active, outcomes)
    except Exception as exc:
        log.exception("no report about %s could be composed", active.id)
        return SettleEffects(events=[_not_composed(active, outcomes, exc)])
    finally:
        context.pending.prepared.pop(active.id, None)


def _not_composed(active: ActiveMessage, outcomes: Sequence[Outcome], exc: Exception) -> Discarded:
    """The event of a report that could not be made."""
    failed = [
        outcome.recipient.record.recipient_index for outcome in outcomes if outcome.kind in _FAILURES
    ]
    noted = [note.recipient_index for note in active.notes]
    return Discarded(
        time_ms=clock.now_ms(), message=active.id, sender=active.meta.sender,
        recipients=(*noted, *failed), reason=f"not composed: {exc!r}"[:REASON_MAX],
    )  # fmt: skip


def _settle_effects(
    context: DeliveryContext, zone: Zone, active: ActiveMessage, outcomes: Sequence[Outcome]
) -> SettleEffects:
    notes = report_notes(active.meta, outcomes, zone.retry, clock.now_ms())
    ends = context.queue.is_last(active, outcomes)
    if not notes and not (ends and active.notes):
        return NO_EFFECTS
    failed = [note for note in notes if note.action == "failed"]
    others = [note for note in notes if note.action != "failed"]
    kept: list[Note] = []
    if ends:
        failed = [*active.notes, *failed]
    elif zone.bounce.aggregate != "attempt":
        kept, failed = failed, []
        if kept and zone.bounce.aggregate == "minute":
            context.pending.add_notes(active.id, clock.monotonic_s())
    warned = any(note.action == "delayed" for note in others) and has_reader(active.meta)
    if warned:
        others += _also_delayed(context.queue, active, {note.recipient_index for note in others})
    reports = ReportComposer(context, zone, active)
    if zone.bounce.format == "qsbmf":
        reports.add(failed)
        reports.add(others)
    else:
        reports.add([*failed, *others])
    composed = reports.composed
    failure_report = composed[0].message if failed and composed else ""
    return SettleEffects(composed, failure_report, kept, reports.discarded, warned, reports.digests)


class BounceReporter:
    """The queue's ``Reports``: reports when a message ends without a settle, or an operator returns it."""

    def __init__(
        self,
        config: Config,
        hostname: str,
        router: Router,
        hooks: Hooks = NO_HOOKS,
        pending: PendingReports | None = None,
    ) -> None:
        self._hooks = hooks
        self._pending = pending or PendingReports()
        self.configure(config, hostname, router)

    def configure(self, config: Config, hostname: str, router: Router) -> None:
        """Use the configuration of a reload."""
        self._config, self._hostname, self._router = config, hostname, router

    def notes(self, active: ActiveMessage, outcomes: Sequence[Outcome]) -> Sequence[Note]:
        """See ``Reports``."""
        retry = self._config.zones["default"].retry  # of no importance for failures
        return report_notes(active.meta, outcomes, retry, clock.now_ms())

    def _context(self, queue: Queue) -> DeliveryContext:
        return DeliveryContext(
            queue, self._config, self._hostname, self._router, self._hooks, self._pending
        )

    async def prepare(self, queue: Queue, active: ActiveMessage) -> None:
        """See ``Reports``."""
        if len(active.notes) > SLICE:
            zones = self._config.zones
            zone = zones.get(active.notes[0].zone, zones["default"])
            await prepare_report(self._context(queue), zone, active)

    def forget(self, active: ActiveMessage) -> None:
        """See ``Reports``."""
        self._pending.prepared.pop(active.id, None)

    def report(self, queue: Queue, active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        """See ``Reports``."""
        zones = self._config.zones
        zone = zones.get(notes[0].zone, zones["default"])
        reports = ReportComposer(self._context(queue), zone, active)
        reports.add(notes)
        return SettleEffects(reports.composed, events=reports.discarded, digests=reports.digests)


def _also_delayed(queue: Queue, active: ActiveMessage, named: set[int]) -> list[Note]:
    """The other deferred recipients of the message, for the same warning."""
    found: list[Note] = []
    try:
        for zone in active.meta.zones:
            prefix = zone_prefix(DEFERRED, zone, active.id)
            for key, value in queue.store.scan(prefix, end_of(prefix)):
                record = read_recipient_record(value)
                note = delayed_note(zone, parse_recipient(key)[2], record)
                if note is not None and note.recipient_index not in named and record.due_ms != HELD_MS:
                    found.append(note)
                if len(found) == ALSO_DELAYED_MAX:
                    return found
    except QueueCorrupt as exc:
        log.critical("%s: a warning does not name every recipient: %s", active.id, exc)
    return found
