"""What the envelope sender hears, composed for the same batch as the outcome it is about.

A report is sent from the null sender. A report that fails makes a double bounce, from ``#@[]`` to
whom the zone names; when that fails too, or nobody is named, nobody hears and the ledger says so.
"""

import logging
from collections.abc import Sequence

from zonemta_py.config.schema import Bounce as BounceSettings
from zonemta_py.config.schema import Config, Retry, Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.delivery import outcome as settle
from zonemta_py.delivery.bounce_hook import Bounce, reworked
from zonemta_py.delivery.request import DeliveryContext
from zonemta_py.events.schema import Discarded
from zonemta_py.queue.accept import NewMessage, NewRecipient, compose_report
from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.format.keys import DEFERRED, HELD_MS, end_of, parse_recipient, zone_prefix
from zonemta_py.queue.format.records import Note, Origin, born, read_waiting
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import NO_EFFECTS, AcceptedMessage, Outcome, SettleEffects
from zonemta_py.routing import Router
from zonemta_py.smtp import qsbmf, verp
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.dsn import Failure, Report, status_report
from zonemta_py.smtp.dsn_params import decode_xtext

ALSO_DELAYED_MAX = 50  # other recipients that a warning names

_HERE = Origin("", "", "", "", "")

log = logging.getLogger(__name__)


def aftermath(
    outbound: DeliveryContext, zone: Zone, active: ActiveMessage, outcomes: Sequence[Outcome]
) -> SettleEffects:
    """What settling ``outcomes`` causes: reports now, or notes for the report at the message's end.

    What the peers said is a fact: a report that cannot be made does not undo it.
    """
    try:
        return _aftermath(outbound, zone, active, outcomes)
    except Exception:
        log.exception("no report about %s could be made", active.id)
        return NO_EFFECTS


def _aftermath(
    outbound: DeliveryContext, zone: Zone, active: ActiveMessage, outcomes: Sequence[Outcome]
) -> SettleEffects:
    now_ms = clock.now_ms()
    told = settle.notes(active.meta, outcomes, zone.retry, now_ms)
    ending = outbound.queue.ends(active, outcomes)
    if not told and not (ending and active.notes):
        return SettleEffects()
    failed = [note for note in told if note.action == "failed"]
    others = [note for note in told if note.action != "failed"]
    kept: list[Note] = []
    if ending:
        failed = [*active.notes, *failed]
    elif zone.bounce.aggregate == "message":
        kept, failed = failed, []
    warned = any(note.action == "delayed" for note in others) and active.meta.sender not in (
        "",
        verp.DOUBLE_BOUNCE,
    )
    if warned:
        others += _also_delayed(outbound.queue, active, {note.number for note in others})
    about = _Reports(outbound, zone, active)
    if zone.bounce.format == "qsbmf":
        about.add(failed)
        about.add(others)
    else:
        about.add([*failed, *others])
    return SettleEffects(
        about.made, about.made[0].message if failed and about.made else "", kept, about.facts, warned
    )


class BounceReporter:
    """The queue's ``Reports``: the report on noted failures when a message ends without a settle."""

    def __init__(self, config: Config, hostname: str, router: Router) -> None:
        self.configure(config, hostname, router)

    def configure(self, config: Config, hostname: str, router: Router) -> None:
        """Use a new configuration."""
        self._config, self._hostname, self._router = config, hostname, router

    def report(self, queue: Queue, active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        """See ``Reports``."""
        zones = self._config.zones
        context = DeliveryContext(queue, self._config, self._hostname, self._router)
        reports = _Reports(context, zones.get(notes[0].zone, zones["default"]), active)
        reports.add(notes)
        return SettleEffects(reports.made, "", (), reports.facts)


def _also_delayed(queue: Queue, active: ActiveMessage, named: set[int]) -> list[Note]:
    """The other recipients of the message that wait after a failure, so that one warning tells all."""
    found: list[Note] = []
    try:
        for zone in active.meta.zones:
            prefix = zone_prefix(DEFERRED, zone, active.id)
            for key, value in queue.store.scan(prefix, end_of(prefix)):
                record = read_waiting(value)
                note = settle.delayed_note(zone, parse_recipient(key)[2], record)
                if note is not None and note.number not in named and record.due_ms != HELD_MS:
                    found.append(note)
                if len(found) == ALSO_DELAYED_MAX:
                    return found
    except QueueCorrupt as exc:
        log.critical("%s: a warning does not name everybody: %s", active.id, exc)
    return found


class _Reports:
    """The reports about one message: ``made`` ones, and ``facts`` about those that are discarded."""

    def __init__(self, outbound: DeliveryContext, zone: Zone, active: ActiveMessage) -> None:
        self._outbound = outbound
        self._zone = zone
        self._live = active
        self.made: list[AcceptedMessage] = []
        self.facts: list[Discarded] = []

    def add(self, notes: Sequence[Note]) -> None:
        """Report ``notes``, if there are any, to the sender or whoever stands in for it."""
        sender = verp.base(self._live.meta.sender)
        bounce = self._zone.bounce
        if sender in ("", verp.DOUBLE_BOUNCE):
            notes = [note for note in notes if note.action == "failed"]
        if not notes:
            return
        if sender == verp.DOUBLE_BOUNCE:
            self._discard(notes, "triple bounce")
        elif sender:
            self._send(notes, sender, "")
        elif bounce.double_bounce_to:
            self._send(notes, bounce.double_bounce_to, verp.DOUBLE_BOUNCE)
        else:
            self._discard(notes, "double bounce")

    def _discard(self, notes: Sequence[Note], reason: str) -> None:
        active = self._live
        log.warning("%s: discarding the report about %s", reason, active.id)
        numbers = tuple(note.number for note in notes)
        self.facts.append(
            Discarded(
                time_ms=clock.now_ms(), message=active.id, sender=active.meta.sender,
                recipients=numbers, reason=reason,
            )
        )  # fmt: skip

    def _send(self, notes: Sequence[Note], to: str, envelope_sender: str) -> None:
        outbound, active = self._outbound, self._live
        report_id = outbound.queue.ids.next(clock.now_ms())
        born_ms = born(active.meta, active.id)
        failures = [_failure(note, self._zone.retry, born_ms) for note in notes]
        qsbmf_wanted = self._zone.bounce.format == "qsbmf" and notes[0].action == "failed"
        report = (self._qsbmf if qsbmf_wanted else self._rfc3464)(report_id, to, failures)
        bounce = Bounce(active.id, to, failures, active.meta.header, report.header, report.body)
        made = reworked(self._zone.bounce.function, bounce)
        if made is None:
            self._discard(notes, "bounce function")
            return
        domain = domain_of(to)
        zone = self._zone.bounce.zone or outbound.router.route(domain, "", "", {})
        new = NewMessage(
            sender=envelope_sender,
            header=made.header,
            recipients=[NewRecipient(to, domain, zone)],
            origin=_HERE,
            message_id=f"<{report_id}@{outbound.hostname}>",
            eight_bit=not (made.body.isascii() and made.header.isascii()),
            smtputf8=not to.isascii(),
            report_for=active.id,
        )
        self.made.append(compose_report(report_id, new, made.body, clock.now_ms()))

    def _rfc3464(self, report_id: str, to: str, failures: Sequence[Failure]) -> Report:
        active, bounce = self._live, self._zone.bounce
        failed = any(failure.action == "failed" for failure in failures)  # RET is about those alone
        whole = failed and not _headers_only(active, bounce)
        original = _original(self._outbound.queue, active, bounce) if whole else None
        return status_report(
            hostname=self._outbound.hostname,
            message_id=active.id,
            report_id=report_id,
            sender=to,
            arrival_date=clock.mail_date(born(active.meta, active.id)),
            date=clock.mail_date(clock.now_ms()),
            failures=failures,
            original_header=_header(active.meta.header, bounce.max_bytes),
            original_body=original,
            envelope_id=decode_xtext(active.meta.envid),
        )

    def _qsbmf(self, report_id: str, to: str, failures: Sequence[Failure]) -> Report:
        active, bounce = self._live, self._zone.bounce
        copy = active.meta.header + b"\r\n"
        if not _headers_only(active, bounce):
            copy += _beginning(self._outbound.queue, active, bounce.max_bytes)
        stripped = len(copy) > bounce.max_bytes
        return qsbmf.bounce_report(
            hostname=self._outbound.hostname,
            report_id=report_id,
            sender=verp.base(active.meta.sender),
            to=to,
            date=clock.mail_date(clock.now_ms()),
            failures=failures,
            original=copy[: bounce.max_bytes],
            stripped=stripped,
        )


def _headers_only(active: ActiveMessage, bounce: BounceSettings) -> bool:
    """Whether only the header goes back: the sender's RET counts more than the zone's setting."""
    return active.meta.ret == "HDRS" or (bounce.return_ == "headers" and active.meta.ret != "FULL")


def _header(block: bytes, most: int) -> bytes:
    """The header block, cut at a line end when it is longer than a report should be."""
    if len(block) <= most:
        return block
    return block[: block.rfind(b"\r\n", 0, most) + 2]


def _original(queue: Queue, active: ActiveMessage, bounce: BounceSettings) -> bytes | None:
    """The body, or None for one that is too large to go back or cannot be read."""
    if active.mark.size + len(active.meta.header) > bounce.max_bytes:
        return None
    try:
        return b"".join(queue.body(active))
    except QueueCorrupt:
        return None  # the report matters more than what it returns


def _beginning(queue: Queue, active: ActiveMessage, most: int) -> bytes:
    """More than ``most`` octets of the body, or all there are."""
    found = b""
    try:
        for chunk in queue.body(active):
            found += chunk
            if len(found) > most:
                break
    except QueueCorrupt:
        pass  # as above
    return found


def _failure(note: Note, retry: Retry, born_ms: int) -> Failure:
    default = {"failed": "5.0.0", "delayed": "4.0.0"}.get(note.action, "2.0.0")
    until_ms = born_ms + int(retry.give_up_after * 1000)
    return Failure(
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
