"""From what intake knows of a message to the records that are written. Pure.

What accepting a message does in memory: room in the windows, a live entry, its submission key.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.queue import transitions
from zonemta_py.queue.active import ActiveMessage, ActiveMessages
from zonemta_py.queue.batch import DoneCallback, WriteBatch
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, IdempotencyRecord, Mark, Meta, Origin, new_waiting
from zonemta_py.queue.idempotency import IdempotencyKeys
from zonemta_py.queue.spill import ReadyWindows, Reservation
from zonemta_py.queue.submitter_queues import Recipient
from zonemta_py.queue.transitions import AcceptedMessage


class NewRecipient(NamedTuple):
    """A recipient to be: normalised address, its zone, and what RFC 3461 lets a client ask."""

    address: str
    domain: str
    zone: str
    notify: int = 0
    orcpt: str = ""


class NewMessage(Struct, frozen=True):
    """What intake, or a report, knows about a message beside its body.

    ``recipients``: each address once. ``key``: digest of the submission key and what it covers.
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
    key: tuple[str, IdempotencyRecord] | None = None
    body_hash: bytes = b""


def compose(message: str, new: NewMessage, mark: Mark, tail: Sequence[bytes]) -> AcceptedMessage:
    """The message ``message`` as it will be accepted; ``tail`` are its chunks not yet written."""
    submitter = new.origin.submitter
    recipients = [
        Recipient(
            keys.waiting_key(to.zone, message, to.address),
            to.zone,
            message,
            to.address,
            new_waiting(i, to.domain, submitter, to.notify, to.orcpt),
        )
        for i, to in enumerate(new.recipients)
    ]
    zones = tuple(sorted({to.zone for to in new.recipients}))
    meta = Meta(
        FORMAT,
        new.sender,
        new.header,
        zones,
        new.eight_bit,
        new.smtputf8,
        new.report_for,
        new.origin,
        new.ret,
        new.envid,
        body_hash=new.body_hash,
    )
    return AcceptedMessage(message, meta, mark, tail, recipients, new.message_id, new.key)


def compose_report(message: str, new: NewMessage, body: bytes, now_ms: int) -> AcceptedMessage:
    """A message made here, to be accepted in the batch of the settle that causes it."""
    size = keys.CHUNK_BYTES
    tail = [body[at : at + size] for at in range(0, len(body), size)]
    return compose(message, new, Mark(FORMAT, now_ms, len(body), len(tail), zlib.crc32(body)), tail)


class MessageAcceptance:
    """Accepts messages into ``windows``; ``now`` gives unix ms."""

    def __init__(
        self,
        windows: ReadyWindows,
        deferral: Deferral,
        active: ActiveMessages,
        idempotency_keys: IdempotencyKeys,
        now: Callable[[], int],
    ) -> None:
        self._windows = windows
        self._deferral = deferral
        self._live = active
        self._idempotency_keys = idempotency_keys
        self._now = now

    def plan(self, batch: WriteBatch, new: AcceptedMessage) -> DoneCallback:
        """Put ``new`` into ``batch``. Returns what is to be called when that is on disk, or failed."""
        transitions.accept(batch, new, self._now())  # first: what cannot be written reserves nothing
        placement = self._windows.plan([r for r in new.recipients if not r.record.due_ms])
        dues = transitions.due_keys_of(new.recipients)
        for due in dues:
            self._deferral.expect(due)
        for spill in placement.spills:
            batch.put(spill.key, b"")
        # There before the commit is: whoever leases it the moment it is on disk must count with this.
        body = b"".join(new.tail) if new.mark.chunks <= 1 else None
        active = ActiveMessage(new.message, new.meta, new.mark, body, len(new.recipients))
        active.leases = 1  # until the commit is over
        self._live.add(active)
        return partial(self._over, new, active, placement, dues)

    def _over(
        self,
        new: AcceptedMessage,
        active: ActiveMessage,
        placement: Reservation,
        dues: Iterable[bytes],
        failure: QueueUnavailable | None,
    ) -> None:
        if new.key is not None:
            self._idempotency_keys.release(new.key[0])
        if failure is not None:
            active.remaining = 0
            self._live.release_message(active)
            self._windows.abandon(placement)
            return
        self._live.release_message(active)
        self._windows.place(placement)
        for due in dues:
            self._deferral.arrived(due)
