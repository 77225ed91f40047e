"""The values in the queue: versioned msgpack arrays. Bytes on disk are frozen by golden tests.

To change one: raise its version here, keep the old tuple beside it, convert in its ``read_…``
function, add a golden file. A relay never writes an older version than it reads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from zonemta_py.core.codec import unpacker
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format.keys import created_ms

FORMAT = 4
READABLE = (1, 2, 3, 4)


class Origin(NamedTuple):
    """Where a message came from. ``protocol`` as in RFC 3848; empty fields for mail made here."""

    listener: str
    client_ip: str
    helo: str
    user: str
    protocol: str

    @property
    def submitter(self) -> str:
        """Who answers for the message: the user, else the client's address, else nobody."""
        return self.user or self.client_ip


class Mark(NamedTuple):
    """``message/MSGID/#``. ``size`` and ``crc`` (CRC-32) are of the body in its ``chunks`` chunks."""

    version: int
    created_ms: int
    size: int
    chunks: int
    crc: int


class Meta(NamedTuple):
    """``message/MSGID/*``. ``header`` is the block that is sent, each field ending in CRLF.

    ``zones`` are those its recipients were routed to. ``report_for`` is the id of the message
    that a report is about. ``smtputf8``: the client declared it. ``ret`` (FULL, HDRS or empty) and
    ``envid`` (xtext) as in RFC 3461. ``warned``: the sender was told of a delay. ``body_hash`` is
    DKIM's (relaxed, SHA-256), empty when nobody was going to sign. ``born_ms``: when its mail was
    accepted first, if that was under another id; 0 otherwise.
    """

    version: int
    sender: str
    header: bytes
    zones: tuple[str, ...]
    eight_bit: bool
    smtputf8: bool
    report_for: str
    origin: Origin
    ret: str = ""  # this and what follows: since version 2
    envid: str = ""
    warned: bool = False
    body_hash: bytes = b""  # since version 3
    born_ms: int = 0  # since version 4


class Waiting(NamedTuple):
    """A recipient in ``delivery-zone/`` or ``deferred/``.

    ``number`` is its 0-based place among the recipients (``index`` in events), for life.
    ``attempts`` that ended, ``uncertain`` ones in a row that a crash cut off. ``due_ms`` is 0 unless
    deferred, keys.HELD_MS when held. The last reply and its time follow. ``notify`` are the flags of
    ``smtp.dsn_options``, ``orcpt`` the parameter as it came.
    """

    version: int
    number: int
    domain: str
    submitter: str
    attempts: int
    uncertain: int
    due_ms: int
    last_ms: int
    code: int
    status: str
    text: str
    notify: int
    orcpt: str


class Inflight(NamedTuple):
    """``inflight/MSGID/N``: which recipients, by index, are in a transaction since when."""

    version: int
    boot: int
    zone: str
    indexes: tuple[int, ...]
    attempt: int
    since_ms: int


class Note(NamedTuple):
    """What a report says of one recipient; in ``bounce/MSGID/INDEX`` until its message ends.

    ``action`` as in RFC 3464: failed, delayed, relayed, delivered. ``expired``: its time was over.
    """

    version: int
    zone: str
    number: int
    recipient: str
    orcpt: str
    action: str
    expired: bool
    attempts: int
    time_ms: int
    phase: str
    code: int
    status: str
    text: str
    mx: str


class IdempotencyRecord(NamedTuple):
    """``submitted/DIGEST``: what was accepted under a submission key, by which message first.

    ``recipients``: their digests, 16 octets each, one after the other. It counts until ``expires_ms``.
    """

    version: int
    expires_ms: int
    message: str
    recipients: bytes


class Open(NamedTuple):
    """``open/MSGID``: which boot writes the body, and when it last got further."""

    version: int
    boot: int
    progress_ms: int


class _Waiting1(NamedTuple):
    """Version 1 of Waiting."""

    version: int
    number: int
    domain: str
    submitter: str
    attempts: int
    uncertain: int
    due_ms: int
    last_ms: int
    code: int
    status: str
    text: str
    warned: bool

    def upgrade(self) -> Waiting:
        """The record as it is today."""
        return Waiting(*self[:-1], 0, "")


R = TypeVar("R", bound=tuple[Any, ...])


def _reader(kind: type[R]) -> Callable[[bytes], R]:
    """A function from stored bytes to ``kind``. It raises QueueCorrupt, for an unknown version too."""
    unpack = unpacker(kind)

    def read(data: bytes) -> R:
        record = unpack(data)
        if record[0] not in READABLE:
            raise QueueCorrupt(f"{kind.__name__}: version {record[0]} is not known here")
        return record

    return read


def read_waiting(data: bytes) -> Waiting:
    """The record of a recipient, of any version. Raises QueueCorrupt."""
    try:
        return _read_waiting2(data)
    except QueueCorrupt:
        if data[1:2] != b"\x01":
            raise
        return _read_waiting1(data).upgrade()


read_mark = _reader(Mark)
read_meta = _reader(Meta)
read_note = _reader(Note)
read_submitted = _reader(IdempotencyRecord)
_read_waiting2 = _reader(Waiting)
_read_waiting1 = _reader(_Waiting1)
read_inflight = _reader(Inflight)
read_open = _reader(Open)


def born(meta: Meta, message: str) -> int:
    """When the mail of ``message`` was accepted (unix ms): its age counts from then."""
    return meta.born_ms or created_ms(message)


def new_waiting(number: int, domain: str, submitter: str, notify: int = 0, orcpt: str = "") -> Waiting:
    """The record of a recipient that was just accepted."""
    return Waiting(FORMAT, number, domain, submitter, 0, 0, 0, 0, 0, "", "", notify, orcpt)
