"""Composes the reports about one message, and keeps when those that wait are due.

States of the failures of a message::

    noted ─▶ reported: in a message that is accepted with the settle
               ├──▶ put off: an entry of the next digest, after ``reports_per_hour`` to the same receiver
               └──▶ discarded, by an event

A report has the null sender. If its delivery fails, a double bounce is sent from ``#@[]`` to the zone's ``double_bounce_to``. If
that fails too, or the key is not set, the report is discarded.

Invariants:

- ``ReportComposer`` makes messages and entries, and writes nothing: they are part of the batch that settles, so a failure and the
  report on it are on disk together.
- What waits is in the queue, under ``bounce/`` and ``digest/``; ``PendingReports`` has only when it is due, and can be thrown away.
- Composing takes one turn of the loop; texts of many notes are made before, in slices (``prepare_report``).
- A user-defined function that fails, or returns something else than a ``Bounce`` or None, changes nothing.

Callers: ``reports.settle_effects`` for a worker, ``BounceReporter`` for the queue, ``ReportSender`` for what is due. All zones share
one ``DeliveryContext``.

Example: a sender with ``reports_per_hour: 10`` whose 200 messages fail gets ten reports, and a digest of 190 at the end of the hour.

Source: RFC 3464 and RFC 3461 (the report), RFC 5321 section 4.5.5 (the null sender), qmail-send (double bounces, QSBMF).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import BounceSettings, Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.logs import RepeatedLines
from zonemta_py.delivery.egress import Egress
from zonemta_py.events.schema import Discarded
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose_report
from zonemta_py.queue.format.keys import digest_key
from zonemta_py.queue.format.records import FORMAT, DigestEntry, Note, Origin, born, starts
from zonemta_py.queue.messages import ActiveMessage
from zonemta_py.queue.outcome import AcceptedMessage
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.routing import Router
from zonemta_py.smtp.address import DOUBLE_BOUNCE, domain_of, normalise, verp_base
from zonemta_py.smtp.headers import is_header
from zonemta_py.smtp.reports import dsn
from zonemta_py.smtp.reports.digest import DigestRow
from zonemta_py.smtp.reports.dsn import (
    RecipientReport,
    RecipientText,
    Report,
    ReportedMessage,
    ReportHead,
    decode_xtext,
    recipient_text,
    status_report,
)
from zonemta_py.smtp.transparency import with_crlf

log = logging.getLogger(__name__)


# ---- A user-defined function that may change or suppress each report. Source: python-slimta's bounce factories.


class Bounce(NamedTuple):
    """A report before it is sent to ``to``. The function may change ``to``, ``header`` and ``body``.

    Fields end in CRLF; other line ends in the body are replaced by it. ``failures`` are those of the message ``message`` (the id), whose header block is ``original``.
    """

    message: str
    to: str
    failures: Sequence[RecipientReport]
    original: bytes
    header: bytes
    body: bytes


BounceFunction = Callable[[Bounce], Bounce | None]


def apply_bounce_function(load: Callable[[], BounceFunction | None], bounce: Bounce) -> Bounce | None:
    """Apply the function that ``load`` returns to ``bounce``; None: send no report.

    A function that raises, or returns anything else, leaves the report unchanged.
    """
    try:
        function = load()
        if function is None:
            return bounce
        changed: object = function(bounce)
    except Exception:
        log.exception("the bounce function failed on the report about %s", bounce.message)
        return bounce
    if changed is None:
        return None
    try:
        return _sendable(changed)
    except (TypeError, ValueError) as exc:
        log.error("the bounce function returned %.200r, which is not used: %s", changed, exc)
        return bounce


def _sendable(changed: object) -> Bounce:
    """``changed`` in the form of the wire. Raises TypeError, ValueError."""
    if not isinstance(changed, Bounce):
        raise TypeError("expected a Bounce or None")
    if not isinstance(changed.header, bytes) or not isinstance(changed.body, bytes):
        raise TypeError("header and body must be bytes")
    if not is_header(changed.header):
        raise ValueError("the header must consist of fields, each with CRLF at its end")
    return changed._replace(to=normalise(changed.to), body=with_crlf(changed.body))


# ---- Reports that wait: failures of a message for a minute, reports to one receiver for the end of their hour.
#
# What waits is in the queue (``bounce/`` and ``digest/`` keys); this is when it is due, and can be thrown away. Times
# are monotonic seconds.

MINUTE_S = 60.0
HOUR_S = 3600.0
RECEIVERS_MAX = 50_000  # whose reports of this hour are counted


def group_of(to: str, sender: str) -> str:
    """The group of the digests for a receiver: 16 hex digits."""
    return blake2b(f"{to}\n{sender}".encode(), digest_size=8).hexdigest()


class PreparedNote(NamedTuple):
    """A note, and the parts of a report that are made of it."""

    note: Note
    report: RecipientReport
    text: RecipientText


class PendingReports:
    """``changed`` is set when something is due before all else. ``discarded``: log lines about reports that are not sent.

    ``prepared``: by message and index of the recipient, while its report is being composed.
    """

    def __init__(self) -> None:
        self.discarded = RepeatedLines(log)
        self.changed = asyncio.Event()
        self.prepared: dict[str, dict[int, PreparedNote]] = {}
        self._waiting: set[tuple[str, str]] = set()  # ("message", id) or ("digest", group)
        self._due: list[tuple[float, tuple[str, str]]] = []  # a heap of them
        self._counts: dict[str, tuple[float, int]] = {}  # by group: begin of the hour, reports

    def count(self, group: str, now_s: float) -> int:
        """Count a report to a receiver; returns how many there are in this hour."""
        began_s, count = self._counts.get(group, (now_s, 0))
        if now_s - began_s >= HOUR_S:
            began_s, count = now_s, 0
        elif not count and len(self._counts) >= RECEIVERS_MAX:
            self._counts.clear()
        self._counts[group] = (began_s, count + 1)
        return count + 1

    def add_notes(self, message: str, now_s: float) -> None:
        """Failures of ``message`` were noted: they are reported a minute after the first."""
        self._add(("message", message), now_s + MINUTE_S)

    def add_digest(self, group: str, now_s: float) -> None:
        """A report was put off: it is sent at the end of the hour, with the others of its receiver."""
        began_s, _ = self._counts.get(group, (now_s, 0))
        self._add(("digest", group), began_s + HOUR_S)

    def _add(self, what: tuple[str, str], due_s: float) -> None:
        if what in self._waiting:
            return
        self._waiting.add(what)
        heappush(self._due, (due_s, what))
        if self._due[0][1] == what:
            self.changed.set()

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something is due; None when nothing waits."""
        return max(0.0, self._due[0][0] - now_s) if self._due else None

    def take_due(self, now_s: float) -> list[tuple[str, str]]:
        """The reports that are due, which are forgotten here: ("message", id) and ("digest", group)."""
        due = []
        while self._due and self._due[0][0] <= now_s:
            due.append(heappop(self._due)[1])
        self._waiting.difference_update(due)
        return due


# ---- What the workers of all zones share.


@dataclass(slots=True)
class DeliveryContext:
    """The objects that settling a lease needs, besides the settings of its zone. A reload replaces the fields in place."""

    queue: Queue
    config: Config
    hostname: str
    router: Router
    hooks: Hooks = NO_HOOKS
    pending: PendingReports = field(default_factory=PendingReports)
    _egress: Egress | None = None
    rng: Random = field(default_factory=Random)
    held_mail: HeldMail = field(init=False)

    def __post_init__(self) -> None:
        self.held_mail = HeldMail(self.queue, Operator(self.queue))

    @property
    def egress(self) -> Egress:
        """The permits that all zones share; made when the first zone asks, in a running loop."""
        if self._egress is None:
            self._egress = Egress(self.queue, self.config)
        return self._egress


# ---- report composer

LOCAL_ORIGIN = Origin("", "", "", "", "")
SLICE = 100  # notes whose texts are made in one turn of the loop


class ReportComposer:
    """Reports: ``composed`` ones, entries for later ``digests``, and events for ``discarded`` ones."""

    def __init__(self, context: DeliveryContext, zone: Zone, active: ActiveMessage) -> None:
        self._context = context
        self._zone = zone
        self._active = active
        self.composed: list[AcceptedMessage] = []
        self.discarded: list[Discarded] = []
        self.digests: list[tuple[bytes, DigestEntry]] = []

    def add(self, notes: Sequence[Note]) -> None:
        """Compose a report on ``notes``, if there are any, to the sender or the zone's ``double_bounce_to``."""
        sender = verp_base(self._active.meta.sender)
        bounce = self._zone.bounce
        if sender in ("", DOUBLE_BOUNCE):
            notes = [note for note in notes if note.action == "failed"]
        if not notes:
            return
        if sender == DOUBLE_BOUNCE:
            self._discard(notes, "triple bounce")
        elif sender:
            self._compose(notes, sender, "")
        elif bounce.double_bounce_to:
            self._compose(notes, bounce.double_bounce_to, DOUBLE_BOUNCE)
        else:
            self._discard(notes, "double bounce")

    def _discard(self, notes: Sequence[Note], reason: str) -> None:
        active = self._active
        text = f"{reason}: discarding the report about {active.id}"
        self._context.pending.discarded.write(reason, logging.WARNING, lambda: text)
        indexes = tuple(note.recipient_index for note in notes)
        self.discarded.append(
            Discarded(
                time_ms=clock.now_ms(), message=active.id, sender=active.meta.sender,
                recipients=indexes, reason=reason,
            )
        )  # fmt: skip

    def _compose(self, notes: Sequence[Note], to: str, envelope_sender: str) -> None:
        context, active = self._context, self._active
        report_id = context.queue.ids.next(clock.now_ms())
        limit = self._zone.bounce.reports_per_hour
        group = group_of(to, envelope_sender)
        if limit is not None and context.pending.count(group, clock.monotonic_s()) > limit:
            entry = DigestEntry(
                version=FORMAT, to=to, sender=envelope_sender, zone=notes[0].zone, message=active.id, notes=tuple(notes),
            )  # fmt: skip
            self.digests.append((digest_key(group, report_id), entry))
            context.pending.add_digest(group, clock.monotonic_s())
            return
        until_ms = starts(active.meta, active.id) + int(self._zone.retry.give_up_after * 1000)
        until_ms = min(until_ms, active.meta.options.expires_ms or until_ms)
        prepared = context.pending.prepared.get(active.id, {})
        found = [
            known
            if (known := prepared.get(note.recipient_index)) is not None and known.note == note
            else prepare_note(note, until_ms, utf8=not to.isascii())
            for note in notes
        ]
        failures = [each.report for each in found]
        if self._zone.bounce.format == "qsbmf" and notes[0].action == "failed":
            report = self._qsbmf(report_id, to, failures)
        else:
            report = self._rfc3464(report_id, to, found)
        bounce = Bounce(
            message=active.id, to=to, failures=failures, original=active.meta.header, header=report.header, body=report.body,
        )  # fmt: skip
        changed = apply_bounce_function(
            partial(self._context.hooks.bounce_function, self._zone.bounce.function), bounce
        )
        if changed is None:
            self._discard(notes, "bounce function")
            return
        to = changed.to
        domain = domain_of(to)
        zone = self._zone.bounce.zone or context.router.route(domain, "", "", {})
        new = NewMessage(
            sender=envelope_sender,
            header=changed.header,
            recipients=[NewRecipient(to, domain, zone)],
            origin=LOCAL_ORIGIN,
            message_id=f"<{report_id}@{context.hostname}>",
            eight_bit=not (changed.body.isascii() and changed.header.isascii()),
            smtputf8=not to.isascii(),
            report_for=active.id,
        )
        self.composed.append(compose_report(report_id, new, changed.body, clock.now_ms()))

    def _rfc3464(self, report_id: str, to: str, notes: Sequence[PreparedNote]) -> Report:
        active, bounce = self._active, self._zone.bounce
        # RET applies to reports of failures only (RFC 3461 section 4.3).
        recipients = [each.report for each in notes]
        failed = any(each.action == "failed" for each in recipients)
        full = failed and not is_headers_only(active, bounce)
        original = _original(self._context.queue, active, bounce) if full else None
        message = ReportedMessage(
            message_id=active.id,
            arrival_date=clock.mail_date(born(active.meta, active.id)),
            header=_cut(active.meta.header, bounce.max_bytes),
            body=original,
            envelope_id=decode_xtext(active.meta.envid),
        )
        texts = [each.text for each in notes]
        return status_report(self._head(report_id, to), message, recipients, texts)

    def _qsbmf(self, report_id: str, to: str, recipients: Sequence[RecipientReport]) -> Report:
        active, bounce = self._active, self._zone.bounce
        copy = active.meta.header + b"\r\n"
        if not is_headers_only(active, bounce):
            copy += _beginning(self._context.queue, active, bounce.max_bytes)
        returned = _cut(copy, bounce.max_bytes)
        return dsn.bounce_report(
            self._head(report_id, to),
            recipients,
            sender=verp_base(active.meta.sender),
            original=returned,
            stripped=len(returned) < len(copy),
        )

    def _head(self, report_id: str, to: str) -> ReportHead:
        return ReportHead(self._context.hostname, report_id, to, clock.mail_date(clock.now_ms()))


def is_headers_only(active: ActiveMessage, bounce: BounceSettings) -> bool:
    """True if a report returns the header only: the sender's RET precedes the zone's setting."""
    return active.meta.ret == "HDRS" or (bounce.return_ == "headers" and active.meta.ret != "FULL")


def _cut(data: bytes, max_bytes: int) -> bytes:
    """The beginning of a header block or a message: whole lines, at most ``max_bytes``."""
    if len(data) <= max_bytes:
        return data
    end = data.rfind(b"\r\n", 0, max_bytes)
    return data[: end + 2] if end >= 0 else b""


def _original(queue: Queue, active: ActiveMessage, bounce: BounceSettings) -> bytes | None:
    """The body; None when it is larger than the zone's limit or damaged."""
    if active.mark.size + len(active.meta.header) > bounce.max_bytes:
        return None
    try:
        return b"".join(queue.bodies.read(active))
    except QueueCorrupt:
        return None  # a report without the body is better than none


def _beginning(queue: Queue, active: ActiveMessage, max_bytes: int) -> bytes:
    """The first chunks of the body, until they exceed ``max_bytes`` or a damaged one."""
    found = b""
    try:
        for chunk in queue.bodies.read(active):
            found += chunk
            if len(found) > max_bytes:
                break
    except QueueCorrupt:
        pass  # see _original
    return found


def _failure(note: Note, until_ms: int) -> RecipientReport:
    default = {"failed": "5.0.0", "delayed": "4.0.0"}.get(note.action, "2.0.0")
    return RecipientReport(
        action=note.action,
        recipient=note.recipient,
        status="4.4.7" if note.expired else note.status or default,
        explanation=_explain(note),
        diagnostic=_diagnostic(note),
        remote_mta=note.mx,
        last_attempt=clock.mail_date(note.time_ms),
        retry_until=clock.mail_date(until_ms) if note.action == "delayed" else "",
        original=decode_xtext(note.orcpt),
    )


def prepare_note(note: Note, until_ms: int, *, utf8: bool) -> PreparedNote:
    """Make the parts of a report about ``note``; ``utf8``: to a receiver whose address is in UTF-8."""
    report = _failure(note, until_ms)
    return PreparedNote(note, report, recipient_text(report, utf8=utf8))


async def prepare_report(context: DeliveryContext, zone: Zone, active: ActiveMessage) -> None:
    """Prepare the report on the failures that were noted of a message, with turns for others.

    The report is composed with the batch that settles, in one turn: of 10,000 recipients that would take seconds. Call
    ``context.pending.prepared.pop`` when it is composed.
    """
    to = verp_base(active.meta.sender) or zone.bounce.double_bounce_to or ""
    prepared = context.pending.prepared.setdefault(active.id, {})
    notes = [note for note in active.notes if note.recipient_index not in prepared]
    for at in range(0, len(notes), SLICE):
        for note in notes[at : at + SLICE]:
            prepared[note.recipient_index] = prepare_note(note, 0, utf8=not to.isascii())
        await asyncio.sleep(0)


def failure_row(message: str, note: Note) -> DigestRow:
    """``note`` as a row of a digest."""
    report = _failure(note, note.time_ms)
    return DigestRow(
        time=report.last_attempt,
        message=message,
        recipient=report.recipient,
        action=report.action,
        status=report.status,
        reply=report.diagnostic or note.text,
        host=report.remote_mta,
    )


def _explain(note: Note) -> str:
    if note.expired:
        return (
            "I'm not going to try again; this message has been in the queue too long. "
            f"Attempts: {note.attempts}. Last: {note.text}"
        )
    if note.code and note.phase:
        return f"The receiving server answered in the step '{note.phase}'."
    return note.text


def _diagnostic(note: Note) -> str:
    if not note.code:
        return ""
    return " ".join(part for part in (str(note.code), note.status, note.text) if part)
