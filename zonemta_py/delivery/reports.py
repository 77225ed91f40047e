"""Decides when failures are reported, and sends the reports that wait: on a message in a minute, and digests.

The failures of a message, by ``bounce.aggregate`` of its zone::

    attempt           ─▶ reported with the settle that has them (``settle_effects``)
    minute  ─▶ noted  ─▶ reported a minute after the first (``ReportSender``), or with the end of the message
    message ─▶ noted  ─▶ reported with the end of the message

Invariants:

- A note is in the queue until the batch that reports it deletes it: each failure is reported once, also over a restart.
- Between the decision whether a settle ends its message and the settle the loop has no turn: ``_settle_effects`` is plain ``def``.
- A defect in composing is logged, with an event: the outcomes count without a report.
- What a run leaves is due at the next start as if it had just come.
- A message that has ended by the time is skipped: its end has reported its notes.

Callers: ``Worker`` calls ``settle_effects``; ``relay.delivery_service`` starts and closes the ``ReportSender``; the queue has a
``BounceReporter`` as its ``Reports``, for messages that end without a settle or by an operator.

Example: of a message to a thousand recipients five bounce within ten seconds, and others wait. With ``aggregate: minute`` the sender
gets one report on the five, 60 s after the first.

Source: RFC 3464, RFC 3461 section 4.1 (NOTIFY).
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.core.runtime import BackgroundTasks
from zonemta_py.delivery.outcome import delayed_note, has_reader, report_notes
from zonemta_py.delivery.report_composer import (
    LOCAL_ORIGIN,
    SLICE,
    DeliveryContext,
    PendingReports,
    ReportComposer,
    failure_row,
    is_headers_only,
    prepare_report,
)
from zonemta_py.events.schema import Discarded
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose_report
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.keys import DEFERRED, HELD_MS, end_of, parse_recipient, zone_prefix
from zonemta_py.queue.format.records import (
    DigestEntry,
    Note,
    read_digest_entry,
    read_note,
    read_recipient_record,
)
from zonemta_py.queue.messages import ActiveMessage
from zonemta_py.queue.outcome import NO_EFFECTS, AcceptedMessage, Outcome, SettleEffects
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.reports.digest import DigestRow, report_digest
from zonemta_py.smtp.reports.dsn import ReportHead

log = logging.getLogger(__name__)


DIGEST_MAX = 10_000  # recipients in one digest; the reports on others are in a second one
SCAN_AT_ONCE = 1000  # keys of an earlier run read without a turn of the loop


class ReportSender:
    """Sends what ``context.pending`` says is due."""

    def __init__(self, context: DeliveryContext) -> None:
        self._context = context
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        """Find what earlier runs left, and send in the background."""
        self._tasks.start(self._run(), "reports")

    async def close(self) -> None:
        """Stop. What is not sent stays in the queue."""
        await self._tasks.stop()
        self._context.pending.discarded.flush()

    async def _run(self) -> None:
        await self._find()
        pending = self._context.pending
        while True:
            pending.changed.clear()
            wait_s = pending.wait_s(clock.monotonic_s())
            if wait_s is None:
                await pending.changed.wait()
            else:
                await clock.wait_event(pending.changed, wait_s)
            for kind, what in pending.take_due(clock.monotonic_s()):
                try:
                    await (self._report_now if kind == "message" else self._send_digest)(what)
                except Exception:
                    log.exception("the report or digest %s is not sent before the next start", what)

    async def _find(self) -> None:
        """Find the reports that earlier runs left: they are due as if they had just come."""
        store = self._context.queue.store
        for space in (keys.BOUNCE, keys.DIGEST):
            cursor: bytes | None = space
            while cursor is not None:
                rows = list(islice(store.scan(cursor, keys.end_of(space)), SCAN_AT_ONCE))
                for key, value in rows:
                    self._found(key, value)
                cursor = rows[-1][0] + b"\0" if len(rows) == SCAN_AT_ONCE else None
                await asyncio.sleep(0)

    def _found(self, key: bytes, value: bytes) -> None:
        zones, pending, now_s = self._context.config.zones, self._context.pending, clock.monotonic_s()
        try:
            if key.startswith(keys.DIGEST):
                pending.add_digest(keys.parse_digest(key)[0], now_s)
            elif zones.get(read_note(value).zone, zones["default"]).bounce.aggregate == "minute":
                pending.add_notes(keys.owner_of(key), now_s)
        except QueueCorrupt as exc:
            log.critical("%r is not reported, repair the queue: %s", key, exc)

    async def _report_now(self, message: str) -> None:
        """Report the noted failures of a message that has recipients left; its end reports them otherwise."""
        queue = self._context.queue
        if queue.store.get(keys.mark_key(message)) is None:
            return
        try:
            active = queue.acquire_message(message)
        except QueueCorrupt as exc:
            log.critical("no report is sent about %s, repair the queue: %s", message, exc)
            return
        batch = WriteBatch()
        try:
            await queue.reporting.prepare(active)
            with suppress(QueueCorrupt):  # the report says so
                await queue.bodies.prefetch(active, self._quoted_bytes())
            notes = active.notes  # another report may have had some of them meanwhile
            if notes and active.remaining:
                callbacks = queue.reporting.add_report(batch, active, notes)
                active.notes = []
                for callback in callbacks:
                    batch.future.add_done_callback(callback)
                await queue.commits.submit(batch)
        except QueueUnavailable:
            return  # the next run finds the notes
        except Exception:
            log.exception("no report about %s could be composed; it is tried again at its end", message)
        finally:
            queue.reporting.forget(active)
            queue.release_message(active)

    def _quoted_bytes(self) -> int:
        """How much of a message a report may return, in any zone."""
        return max(zone.bounce.max_bytes for zone in self._context.config.zones.values())

    async def _send_digest(self, group: str) -> None:
        """Send what was put off for a receiver, and remove it, in one batch."""
        queue = self._context.queue
        prefix = keys.digest_key(group, "")
        while True:
            batch, entries, rows = WriteBatch(), [], 0
            for key, value in queue.store.scan(prefix, keys.end_of(prefix)):
                batch.delete(key)
                try:
                    entries.append(read_digest_entry(value))
                    rows += len(entries[-1].notes)
                except QueueCorrupt as exc:
                    log.critical("%r is not in the digest: %s", key, exc)
                if rows >= DIGEST_MAX:
                    break
            if not batch.ops:
                return
            if entries:
                digest = await self._digest(entries)
                for callback in queue.reporting.accept(batch, [digest]):
                    batch.future.add_done_callback(callback)
            try:
                await queue.commits.submit(batch)
            except QueueUnavailable:
                return

    async def _digest(self, entries: list[DigestEntry]) -> AcceptedMessage:
        context, first, now_ms = self._context, entries[0], clock.now_ms()
        report_id = context.queue.ids.next(now_ms)
        head = ReportHead(context.hostname, report_id, first.to, clock.mail_date(now_ms))
        rows: list[DigestRow] = []
        for entry in entries:
            for at in range(0, len(entry.notes), SLICE):
                rows += [failure_row(entry.message, note) for note in entry.notes[at : at + SLICE]]
                if len(rows) >= SLICE:
                    await asyncio.sleep(0)
        report = await asyncio.to_thread(report_digest, head, rows, len(entries))
        zones, domain = context.config.zones, domain_of(first.to)
        bounce = zones.get(first.zone, zones["default"]).bounce
        zone = bounce.zone or context.router.route(domain, "", "", {})
        new = NewMessage(
            sender=first.sender,
            header=report.header,
            recipients=[NewRecipient(first.to, domain, zone)],
            origin=LOCAL_ORIGIN,
            message_id=f"<{report_id}@{context.hostname}>",
            smtputf8=not first.to.isascii(),
            report_for=first.message,
        )
        return compose_report(report_id, new, report.body, now_ms)


# ---- Reports to the envelope sender: which are due in the batch that settles the recipients they are about.

REASON_MAX = 200  # characters, of the reason for which no report could be composed
ALSO_DELAYED_MAX = 50  # further recipients that a warning names

_FAILURES = (OutcomeKind.BOUNCED, OutcomeKind.EXPIRED, OutcomeKind.LAPSED)


async def settle_effects(
    context: DeliveryContext, zone: Zone, active: ActiveMessage, outcomes: Sequence[Outcome]
) -> SettleEffects:
    """The reports that settling ``outcomes`` causes, or notes for a report at the end of the message.

    The settle must follow without a turn of the loop: the result depends on whether the message ends.
    A defect in composing reports is logged: the outcomes count without a report. Raises QueueUnavailable once the queue is closed.
    """
    try:
        if len(active.notes) > SLICE and context.queue.is_last(active, outcomes):
            await prepare_report(context, zone, active)
        failed = bool(active.notes)
        for outcome in outcomes:
            failed = failed or outcome.kind in _FAILURES
        if failed and not is_headers_only(active, zone.bounce):
            with suppress(QueueCorrupt):  # then the report does not contain the body
                await context.queue.bodies.prefetch(active, zone.bounce.max_bytes)
        return _settle_effects(context, zone, active, outcomes)
    except QueueUnavailable:
        raise
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
    return SettleEffects(
        reports=composed,
        failure_report=failure_report,
        notes=kept,
        events=reports.discarded,
        warned=warned,
        digests=reports.digests,
    )


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
        retry = self._config.zones["default"].retry  # of no importance for failures
        return report_notes(active.meta, outcomes, retry, clock.now_ms())

    def _context(self, queue: Queue) -> DeliveryContext:
        return DeliveryContext(
            queue=queue,
            config=self._config,
            hostname=self._hostname,
            router=self._router,
            hooks=self._hooks,
            pending=self._pending,
        )

    async def prepare(self, queue: Queue, active: ActiveMessage) -> None:
        if len(active.notes) > SLICE:
            zones = self._config.zones
            zone = zones.get(active.notes[0].zone, zones["default"])
            await prepare_report(self._context(queue), zone, active)

    def forget(self, active: ActiveMessage) -> None:
        self._pending.prepared.pop(active.id, None)

    def report(self, queue: Queue, active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
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
