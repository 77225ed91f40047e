"""From what intake knows of a message to the records that are written. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from zonemta_py.queue import keys
from zonemta_py.queue.ready import Recipient
from zonemta_py.queue.records import FORMAT, Mark, Meta, Origin, new_waiting
from zonemta_py.queue.transitions import Submission


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What intake, or a report, knows about a message beside its body.

    ``recipients``: (normalised address, domain, zone), each address once.
    """

    sender: str
    header: bytes
    recipients: Sequence[tuple[str, str, str]]
    origin: Origin
    message_id: str = ""
    eight_bit: bool = False
    smtputf8: bool = False
    report_for: str = ""


def compose(message: str, new: NewMessage, mark: Mark, tail: Sequence[bytes]) -> Submission:
    """The message ``message`` as it will be accepted; ``tail`` are its chunks not yet written."""
    submitter = new.origin.submitter
    recipients = [
        Recipient(
            keys.waiting_key(zone, message, address),
            zone,
            message,
            address,
            new_waiting(i, domain, submitter),
        )
        for i, (address, domain, zone) in enumerate(new.recipients)
    ]
    zones = tuple(sorted({zone for _, _, zone in new.recipients}))
    meta = Meta(
        FORMAT,
        new.sender,
        new.header,
        zones,
        new.eight_bit,
        new.smtputf8,
        new.report_for,
        new.origin,
    )
    return Submission(message, meta, mark, tail, recipients, new.message_id)
