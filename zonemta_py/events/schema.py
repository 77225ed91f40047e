"""Every fact the relay records, one frozen record each; ``docs/events.md`` lists them.

A fact becomes one JSON object. ``node``, ``seq`` and ``position`` are added when its group is
committed: together they identify the record for ever, so that a repeat can be removed.
"""

from typing import ClassVar, Protocol

from zonemta_py.core.codec import Struct, to_json


class Event(Protocol):
    """Anything with a name that codec can write as a JSON object."""

    name: ClassVar[str]


class AcceptedRecipient(Struct, frozen=True):
    """One recipient of an accepted message; ``index`` is 0-based and stays its number for life."""

    index: int
    recipient: str
    zone: str


class Accepted(Struct, frozen=True, kw_only=True):
    """A message is on disk and answered with 250, or was made here as a report.

    ``report_for`` is the queue id of the message a report is about, else empty. ``submitter`` is
    the authenticated user or the client's address.
    """

    name: ClassVar[str] = "accepted"
    time_ms: int
    message: str
    sender: str
    recipients: tuple[AcceptedRecipient, ...]
    size_bytes: int
    message_id: str
    listener: str
    client_ip: str
    helo: str
    user: str
    submitter: str
    protocol: str
    report_for: str


class Rejected(Struct, frozen=True, kw_only=True):
    """A command or a message was refused at intake; nothing was accepted."""

    name: ClassVar[str] = "rejected"
    time_ms: int
    listener: str
    client_ip: str
    helo: str
    user: str
    command: str
    sender: str
    recipient: str
    code: int
    reply: str


class Repeated(Struct, frozen=True, kw_only=True):
    """A client submitted again what was accepted under its submission key; nothing was enqueued.

    ``message`` is the id of the first message, ``recipients`` how many the repeat named.
    """

    name: ClassVar[str] = "repeated"
    time_ms: int
    message: str
    recipients: int
    listener: str
    client_ip: str
    user: str


class _OfRecipient(Struct, frozen=True, kw_only=True):
    """What every fact about one recipient carries. ``attempt`` counts from 1."""

    time_ms: int
    message: str
    index: int
    recipient: str
    zone: str
    domain: str
    sender: str
    submitter: str
    attempt: int
    created_ms: int


class _OfAttempt(_OfRecipient, frozen=True, kw_only=True):
    """What an attempt adds: the peer, the way there and the answer.

    ``phase`` is connect, mail, rcpt, data or dot. ``code`` is 0 when no server answered; ``reply``
    then says what happened here.
    """

    phase: str
    code: int
    status: str
    reply: str
    mx: str
    mx_ip: str
    source_ip: str
    tls: bool
    duration_ms: int


class Delivered(_OfAttempt, frozen=True, kw_only=True):
    """The peer took responsibility with a 2xx to the final dot."""

    name: ClassVar[str] = "delivered"


class Deferred(_OfAttempt, frozen=True, kw_only=True):
    """The recipient is tried again at ``due_ms``.

    ``uncertain``: the final dot was sent and its answer lost, so the peer may have the message.
    """

    name: ClassVar[str] = "deferred"
    due_ms: int
    uncertain: bool


class Bounced(_OfAttempt, frozen=True, kw_only=True):
    """The recipient failed for good. ``report`` is the queue id of the report, empty without one."""

    name: ClassVar[str] = "bounced"
    report: str


class Expired(_OfAttempt, frozen=True, kw_only=True):
    """The recipient was tried until ``give_up_after``. ``report`` as in ``bounced``."""

    name: ClassVar[str] = "expired"
    report: str


class Requeued(_OfAttempt, frozen=True, kw_only=True):
    """The recipient is tried again at ``due_ms``, as recipient ``new_index`` of message ``new_message``.

    A program had dealt with others of its message for good.
    """

    name: ClassVar[str] = "requeued"
    due_ms: int
    new_message: str
    new_index: int


class Deleted(_OfRecipient, frozen=True, kw_only=True):
    """An operator removed the recipient from the queue."""

    name: ClassVar[str] = "deleted"


class Lost(Struct, frozen=True, kw_only=True):
    """Damage on disk took the recipient, and ``queue repair`` could not bring it back.

    What the damage left is what the fact knows; ``reason`` says what was found.
    """

    name: ClassVar[str] = "lost"
    time_ms: int
    message: str
    index: int
    recipient: str
    zone: str
    reason: str


class Uncertain(_OfRecipient, frozen=True, kw_only=True):
    """A crash fell into a transaction: the peer may have the message, and it will be sent again."""

    name: ClassVar[str] = "uncertain"


class Held(_OfRecipient, frozen=True, kw_only=True):
    """The recipient waits until an operator releases it. ``reason`` says who or what held it."""

    name: ClassVar[str] = "held"
    reason: str


class Released(_OfRecipient, frozen=True, kw_only=True):
    """An operator let a held recipient go on."""

    name: ClassVar[str] = "released"


class Discarded(Struct, frozen=True, kw_only=True):
    """A report could not be sent to anybody: ``reason`` is double bounce or triple bounce.

    ``recipients`` are the indexes of those it would have told about. Their own outcome is a fact
    of its own; this says that nobody hears of it.
    """

    name: ClassVar[str] = "discarded"
    time_ms: int
    message: str
    sender: str
    recipients: tuple[int, ...]
    reason: str


class Moved(Struct, frozen=True, kw_only=True):
    """Recipients changed zone because theirs is gone from the configuration."""

    name: ClassVar[str] = "moved"
    time_ms: int
    message: str
    recipients: tuple[int, ...]
    zone: str
    new_zone: str


EVENTS: tuple[type, ...] = (
    Accepted, Rejected, Delivered, Deferred, Bounced, Expired, Deleted, Lost, Uncertain, Held, Released,
    Discarded, Repeated, Moved, Requeued,
)  # fmt: skip

FINAL = (
    "delivered",
    "bounced",
    "expired",
    "requeued",
    "deleted",
    "lost",
)  # each recipient has one of them


def encode(event: Event) -> bytes:
    """``event`` as the inside of a JSON object, braces and identity still missing."""
    return b'"event":"' + event.name.encode() + b'",' + to_json(event)[1:-1]


def identify(node: str, seq: int, bodies: list[bytes]) -> bytes:
    """The JSON lines of one group commit, from what ``encode`` gave for each of its facts."""
    head = f'{{"node":"{node}","seq":{seq},"position":'.encode()
    return b"".join(b"%b%d,%b}\n" % (head, position, body) for position, body in enumerate(bodies))
