"""The events that the relay records, one frozen struct each; ``docs/events.md`` lists them.

An event becomes one JSON object. ``node``, ``seq`` and ``position`` are added when its group is committed:
together they identify the record, so that a repeat can be removed.
"""

from typing import ClassVar, Protocol

from zonemta_py.core.codec import Struct, named, to_json


class Event(Protocol):
    """A struct with a name, which codec writes as a JSON object."""

    name: ClassVar[str]


class AcceptedRecipient(Struct, frozen=True):
    """One recipient of an accepted message; ``index`` is 0-based and never changes."""

    index: int
    recipient: str
    zone: str


class Accepted(Struct, frozen=True, kw_only=True):
    """A message is on disk and answered with 250, or is a report of this relay.

    ``report_for``: the queue id of the message that a report is about, or empty. ``submitter``: the
    authenticated user, else the address of the client. ``campaign`` and ``tags``: what the submitter called it;
    ``not_before_ms``, ``expires_ms`` (0: none) and ``priority``: what it asked for. ``submission``: the queue id that the
    submitter was given, where a policy made several messages of one and this is another one of them; else empty.
    ``same_key_as``: the queue id of the first message under its submission key, which had other content; else empty.
    ``ignored``: why fields that say what the message is could not be used, one text for each.
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
    tenant: str
    campaign: str
    tags: tuple[str, ...]
    not_before_ms: int
    expires_ms: int
    priority: str
    protocol: str
    report_for: str
    submission: str = ""
    same_key_as: str = ""
    ignored: tuple[str, ...] = ()


class Rejected(Struct, frozen=True, kw_only=True):
    """Intake refused a command or a message, or ``count`` of them from one address; nothing was accepted."""

    name: ClassVar[str] = "rejected"
    time_ms: int
    listener: str
    client_ip: str
    helo: str
    user: str
    tenant: str
    command: str
    sender: str
    recipient: str
    code: int
    reply: str
    count: int = 1


class Repeated(Struct, frozen=True, kw_only=True):
    """A client repeated a submission: recipients that have a message under its submission key do not get it again.

    ``message``: the id of the message that they have. ``recipients``: how many they are; ``addresses``: theirs.
    """

    name: ClassVar[str] = "repeated"
    time_ms: int
    message: str
    recipients: int
    listener: str
    client_ip: str
    user: str
    tenant: str
    addresses: tuple[str, ...] = ()


class _OfRecipient(Struct, frozen=True, kw_only=True):
    """The fields of every event about one recipient. ``attempt`` counts from 1.

    ``created_ms``: when the message was accepted, or may be sent first if that is later.
    """

    time_ms: int
    message: str
    index: int
    recipient: str
    zone: str
    domain: str
    sender: str
    submitter: str
    tenant: str
    campaign: str
    tags: tuple[str, ...]
    attempt: int
    created_ms: int


class _OfAttempt(_OfRecipient, frozen=True, kw_only=True):
    """The fields of an attempt: the peer, the connection and the reply.

    ``phase`` is connect, mail, rcpt, data, dot or operator. ``code`` is 0 when no server replied; ``reply`` then
    names the local error. ``class``: what the failure is about, see ``smtp.reply_class``; empty for a success.
    ``provider``: whose hosts receive the mail of the domain; empty where it is not looked up.
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
    reply_class: str = named("class", "")
    provider: str = ""


class Delivered(_OfAttempt, frozen=True, kw_only=True):
    """The peer accepted the message with a 2xx reply to the final dot."""

    name: ClassVar[str] = "delivered"


class Deferred(_OfAttempt, frozen=True, kw_only=True):
    """The recipient will be tried again at ``due_ms``; 0: when it is released, see ``held``.

    ``uncertain``: the final dot was sent, or the message handed over, and the reply lost: the peer may have it.
    """

    name: ClassVar[str] = "deferred"
    due_ms: int
    uncertain: bool


class Bounced(_OfAttempt, frozen=True, kw_only=True):
    """The recipient failed permanently. ``report``: the queue id of the report, or empty."""

    name: ClassVar[str] = "bounced"
    report: str


class Expired(_OfAttempt, frozen=True, kw_only=True):
    """The recipient was tried until ``give_up_after``. ``report`` as in ``bounced``."""

    name: ClassVar[str] = "expired"
    report: str


class Lapsed(_OfRecipient, frozen=True, kw_only=True):
    """The message reached ``expires_ms``, the limit that its submitter gave at ``expires_ms`` (X-Expire, RFC 2852).

    ``reply`` has that of the last attempt. ``report`` as in ``bounced``. ``class`` is expired.
    """

    name: ClassVar[str] = "lapsed"
    expires_ms: int
    reply: str
    report: str
    reply_class: str = named("class", "expired")


class Requeued(_OfAttempt, frozen=True, kw_only=True):
    """The recipient will be tried again at ``due_ms``, as recipient ``new_index`` of ``new_message``.

    A program that dequeues had settled the other recipients of its message.
    """

    name: ClassVar[str] = "requeued"
    due_ms: int
    new_message: str
    new_index: int


class Deleted(_OfRecipient, frozen=True, kw_only=True):
    """An operator removed the recipient from the queue."""

    name: ClassVar[str] = "deleted"


class Lost(Struct, frozen=True, kw_only=True):
    """The recipient was lost by damage on disk, and ``queue repair`` could not restore it.

    Fields that were damaged are empty; ``reason`` says what was found.
    """

    name: ClassVar[str] = "lost"
    time_ms: int
    message: str
    index: int
    recipient: str
    zone: str
    reason: str


class Uncertain(_OfRecipient, frozen=True, kw_only=True):
    """The peer may have the message, and it is or was sent again: a crash interrupted the transaction, or the reply to the final dot was lost.

    ``deferred`` says the latter by a field. It is an event of its own where another host then had the message, or no attempt follows.
    """

    name: ClassVar[str] = "uncertain"


class Held(_OfRecipient, frozen=True, kw_only=True):
    """The recipient waits until it is released. ``reason``: an operator, how often the relay stopped, what is suspended, or a rule of shaping."""

    name: ClassVar[str] = "held"
    reason: str


class Released(_OfRecipient, frozen=True, kw_only=True):
    """A held recipient may be sent: an operator released it, or what is suspended was resumed, or its time was over."""

    name: ClassVar[str] = "released"


class Discarded(Struct, frozen=True, kw_only=True):
    """A report was not sent: ``reason`` is double bounce, triple bounce, bounce function, or ``not composed: …``.

    ``recipients``: the indexes of the recipients it was about. Their outcomes are events of their own.
    """

    name: ClassVar[str] = "discarded"
    time_ms: int
    message: str
    sender: str
    recipients: tuple[int, ...]
    reason: str


class Moved(Struct, frozen=True, kw_only=True):
    """Recipients changed zone because the configuration no longer has theirs.

    At a start with ``zone_removed: default``; after ``accepted``, when a reload removed the zone while the message arrived.
    """

    name: ClassVar[str] = "moved"
    time_ms: int
    message: str
    recipients: tuple[int, ...]
    zone: str
    new_zone: str


class Shaped(Struct, frozen=True, kw_only=True):
    """A change of what is sent from an address to a provider, and its cause: replies, a rule, a schedule or an operator.

    ``what``: pace, pause, pool, warmup, suspended or resumed. ``from`` and ``to`` as text. A zone or domain that is suspended is
    in ``cause``.
    """

    name: ClassVar[str] = "shaped"
    time_ms: int
    provider: str
    address: str
    what: str
    before: str = named("from", "")
    after: str = named("to", "")
    cause: str


EVENTS: tuple[type[Event], ...] = (
    Accepted, Rejected, Delivered, Deferred, Bounced, Expired, Deleted, Lost, Uncertain, Held, Released,
    Discarded, Repeated, Moved, Requeued, Lapsed, Shaped,
)  # fmt: skip

EVENT_NAMES = tuple(sorted(kind.name for kind in EVENTS))

FINAL = (
    "delivered",
    "bounced",
    "expired",
    "lapsed",
    "requeued",
    "deleted",
    "lost",
)  # the final outcomes: each recipient gets exactly one


BOOT_SHIFT = 40  # a sequence number is that of its boot, shifted, plus a count from 1


def first_seq(boot: int) -> int:
    """The first sequence number of a boot."""
    return (boot << BOOT_SHIFT) + 1


def boot_of(seq: int) -> int:
    """The boot in which ``seq`` was used; 0 for 0."""
    return seq >> BOOT_SHIFT


def number_before(first: int, previous: int) -> int:
    """The number that precedes ``first`` in a whole log: the one before it; at the beginning of a boot ``previous``.

    It is the only rule of continuity. ``previous``: the highest number that is known to be before ``first``.
    """
    return previous if first == first_seq(boot_of(first)) else max(previous, first - 1)


def encode(event: Event) -> bytes:
    """``event`` as JSON, without the braces and the identity."""
    return b'"event":"' + event.name.encode() + b'",' + to_json(event)[1:-1]


def identify(node: str, seq: int, bodies: list[bytes]) -> bytes:
    """The JSON lines of one group commit; ``bodies`` are its events, encoded."""
    head = f'{{"node":"{node}","seq":{seq},"position":'.encode()
    return b"".join(b"%b%d,%b}\n" % (head, position, body) for position, body in enumerate(bodies))
