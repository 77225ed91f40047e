"""Sends the reports that wait: on the failures of a message in a minute, and the digests of receivers."""

import asyncio
import logging
from contextlib import suppress
from itertools import islice

from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.core.tasks import BackgroundTasks
from zonemta_py.delivery.context import DeliveryContext
from zonemta_py.delivery.report_composer import LOCAL_ORIGIN, SLICE, failure_row
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose_report
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import DigestEntry, read_digest_entry, read_note
from zonemta_py.queue.outcome import AcceptedMessage
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.digest import DigestRow, report_digest
from zonemta_py.smtp.dsn import ReportHead

DIGEST_MAX = 10_000  # recipients in one digest; the reports on others are in a second one
SCAN_AT_ONCE = 1000  # keys of an earlier run read without a turn of the loop

log = logging.getLogger(__name__)


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
        """What earlier runs left is due as if it had just come."""
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
