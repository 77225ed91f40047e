"""From what intake knows of a message to the records that are written. Pure."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from zonemta_py.codec import Struct
from zonemta_py.queue import keys
from zonemta_py.queue.lanes import Recipient
from zonemta_py.queue.records import FORMAT, Mark, Meta, Origin, Submitted, new_waiting
from zonemta_py.queue.transitions import Submission


class Addressee(NamedTuple):
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
    recipients: Sequence[Addressee]
    origin: Origin
    message_id: str = ""
    eight_bit: bool = False
    smtputf8: bool = False
    report_for: str = ""
    ret: str = ""
    envid: str = ""
    key: tuple[str, Submitted] | None = None
    body_hash: bytes = b""


def compose(message: str, new: NewMessage, mark: Mark, tail: Sequence[bytes]) -> Submission:
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
    return Submission(message, meta, mark, tail, recipients, new.message_id, new.key)


def compose_report(message: str, new: NewMessage, body: bytes, now_ms: int) -> Submission:
    """A message made here, to be accepted in the batch of the settle that causes it."""
    size = keys.CHUNK_BYTES
    tail = [body[at : at + size] for at in range(0, len(body), size)]
    return compose(message, new, Mark(FORMAT, now_ms, len(body), len(tail), zlib.crc32(body)), tail)
