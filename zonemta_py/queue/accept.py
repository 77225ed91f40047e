"""Accepting a message: from what intake knows to the records of one batch, and what follows its commit."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from typing import NamedTuple

from zonemta_py.core.codec import Struct, crc32, replace
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.queue import transitions
from zonemta_py.queue.commit import DoneCallback, WriteBatch
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FLOW_SEPARATOR,
    FORMAT,
    NO_OPTIONS,
    NONURGENT_FLOW,
    TENANT_FLOW,
    URGENT_FLOW,
    BodyRecord,
    DeliveryOptions,
    EnvelopeRecord,
    Origin,
    new_recipient_record,
)
from zonemta_py.queue.messages import ActiveMessage, ActiveMessages
from zonemta_py.queue.outcome import AcceptedMessage
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.ready.windows import ReadyWindows, Reservation
from zonemta_py.queue.submitters.keys import KeyUse, SubmissionKeys
from zonemta_py.queue.traffic import Traffic
from zonemta_py.routing import DEFAULT_ZONE
from zonemta_py.smtp.address import domain_of

log = logging.getLogger(__name__)


ID_AHEAD_MAX_MS = 60_000  # of the time in a message id; more is a clock that was wrong


class NewRecipient(NamedTuple):
    """A recipient to accept: normalised address, its zone, and the options of RFC 3461."""

    address: str
    domain: str
    zone: str
    notify: int = 0
    orcpt: str = ""


class NewMessage(Struct, frozen=True):
    """All that intake, or a report, knows about a message except its body.

    ``recipients``: each address once. ``key``: what it puts under its submission key. ``hold``: why
    the message is held from the beginning; empty when it is not. ``submission``: see the event ``accepted``.
    ``unknown_zone``: for which its header asked in vain; ``ignored``: see the event.
    """

    sender: str
    header: bytes
    recipients: Sequence[NewRecipient]
    origin: Origin
    message_id: str = ""
    eight_bit: bool = False
    smtputf8: bool = False
    report_for: str = ""
    ret: str = ""
    envid: str = ""
    key: KeyUse | None = None
    body_hash: bytes = b""
    campaign: str = ""
    tags: tuple[str, ...] = ()
    options: DeliveryOptions = NO_OPTIONS
    hold: str = ""
    submission: str = ""
    unknown_zone: str = ""
    ignored: tuple[str, ...] = ()


def compose(message: str, new: NewMessage, mark: BodyRecord, tail: Sequence[bytes]) -> AcceptedMessage:
    """The records of message id ``message``; ``tail`` are its chunks that are not yet written."""
    flow = flow_of(new.origin, new.sender, new.options.priority)
    recipients = [
        QueuedRecipient(
            keys.waiting_key(to.zone, message, to.address),
            to.zone,
            message,
            to.address,
            new_recipient_record(index, to.domain, flow, to.notify, to.orcpt),
        )
        for index, to in enumerate(new.recipients)
    ]
    due_ms = keys.HELD_MS if new.hold else new.options.not_before_ms
    if due_ms > mark.created_ms:
        for recipient in recipients:
            recipient.key = keys.deferred_key(recipient.zone, message, recipient.address)
            recipient.record = recipient.record._replace(due_ms=due_ms)
    zones = tuple(sorted({to.zone for to in new.recipients}))
    meta = EnvelopeRecord(
        version=FORMAT, sender=new.sender, header=new.header, zones=zones, eight_bit=new.eight_bit, smtputf8=new.smtputf8,
        report_for=new.report_for, origin=new.origin, ret=new.ret, envid=new.envid, body_hash=new.body_hash,
        born_ms=_born_ms(message, mark), campaign=new.campaign, tags=new.tags,
        options=new.options._replace(quarantined=True) if new.hold else new.options,
    )  # fmt: skip
    return AcceptedMessage(
        message=message, meta=meta, mark=mark, tail=tail, recipients=recipients, message_id=new.message_id, key=new.key,
        hold=new.hold, submission=new.submission, ignored=new.ignored,
    )  # fmt: skip


def _born_ms(message: str, mark: BodyRecord) -> int:
    """The time of acceptance if the id has another one: ids do not go back when the clock does. Else 0."""
    differs = abs(keys.created_ms(message) - mark.created_ms) > ID_AHEAD_MAX_MS
    return mark.created_ms if differs else 0


def compose_report(message: str, new: NewMessage, body: bytes, now_ms: int) -> AcceptedMessage:
    """A report, to be accepted in the batch of the settle that causes it."""
    size = keys.CHUNK_BYTES
    tail = [body[at : at + size] for at in range(0, len(body), size)]
    return compose(message, new, BodyRecord(FORMAT, now_ms, len(body), len(tail), crc32(body)), tail)


class Acceptor:
    """Adds messages to batches. ``now`` gives unix ms.

    ``zones``: those of the configuration, None for any. ``zones_entered`` counts messages whose batch is not on disk yet.
    """

    def __init__(
        self,
        windows: ReadyWindows,
        deferral: Deferral,
        active: ActiveMessages,
        submission_keys: SubmissionKeys,
        traffic: Traffic,
        now: Callable[[], int],
    ) -> None:
        self._traffic = traffic
        self._windows = windows
        self._deferral = deferral
        self._active = active
        self._submission_keys = submission_keys
        self._now = now
        self.zones: frozenset[str] | None = None
        self.zones_entered: Counter[str] = Counter()

    def add(self, batch: WriteBatch, new: AcceptedMessage) -> DoneCallback:
        """Put ``new`` into ``batch``; returns the callback for its end.

        The caller adds it to the batch's future, after the callbacks of what the batch settles.
        """
        if self.zones is not None and not self.zones.issuperset(new.meta.zones):
            new = _without_gone_zones(new, self.zones)
        due_keys = transitions.due_keys_of(new.recipients)
        # First: what cannot be written reserves nothing.
        transitions.accept(batch, new, due_keys, self._now())
        reservation = self._windows.reserve([r for r in new.recipients if not r.record.due_ms])
        reservation.write(batch)
        for due in due_keys:
            self._deferral.expect(due)
        # Active before the commit: a lease taken the moment it is on disk counts with this entry.
        body = b"".join(new.tail) if new.mark.chunks <= 1 else None
        active = ActiveMessage(new.message, new.meta, new.mark, body, len(new.recipients))
        active.leases = 1  # until the commit has ended
        self._active.add(active)
        for zone in new.meta.zones:
            self.zones_entered[zone] += 1
        return partial(self._committed, new, active, reservation, due_keys)

    def _committed(
        self,
        new: AcceptedMessage,
        active: ActiveMessage,
        reservation: Reservation,
        due_keys: Iterable[bytes],
        failure: QueueUnavailable | None,
    ) -> None:
        for zone in new.meta.zones:
            self.zones_entered[zone] -= 1
        if new.key is not None:
            self._submission_keys.release(new.key.digest)
        if failure is not None:
            active.remaining = 0
            self._active.release(active)
            reservation.rollback()
            return
        self._traffic.accept(
            len(new.meta.header) + 2 + new.mark.size, [each.zone for each in new.recipients]
        )
        self._active.release(active)
        reservation.commit()
        for due in due_keys:
            self._deferral.written(due)


def _without_gone_zones(new: AcceptedMessage, zones: Set[str]) -> AcceptedMessage:
    """``new`` with the recipients whose zone a reload has removed since they were routed in the zone ``default``."""
    moved_from: dict[int, str] = {}
    for recipient in new.recipients:
        if recipient.zone not in zones:
            moved_from[recipient.record.recipient_index] = recipient.zone
            key_of = keys.deferred_key if recipient.record.due_ms else keys.waiting_key
            recipient.zone = DEFAULT_ZONE
            recipient.key = key_of(DEFAULT_ZONE, recipient.message, recipient.address)
    gone = sorted(set(moved_from.values()))
    log.warning(
        "%s: zone '%s' is gone: %d recipients moved to '%s'",
        new.message, "', '".join(gone), len(moved_from), DEFAULT_ZONE,
    )  # fmt: skip
    kept = tuple(sorted({recipient.zone for recipient in new.recipients}))
    return replace(new, meta=new.meta._replace(zones=kept), moved_from=moved_from)


def flow_of(origin: Origin, sender: str, priority: str) -> str:
    """The queue of a message among others of its destination; see ``RecipientRecord``."""
    domain = domain_of(sender)
    end = {"urgent": URGENT_FLOW, "nonurgent": NONURGENT_FLOW}.get(priority, "")
    if origin.tenant:
        within = origin.user or domain
        return f"{TENANT_FLOW}{origin.tenant}{FLOW_SEPARATOR}{within}{end}"
    if origin.user or not origin.client_ip or not domain:
        return origin.submitter + end
    return f"{origin.client_ip}{FLOW_SEPARATOR}{domain}{end}"
