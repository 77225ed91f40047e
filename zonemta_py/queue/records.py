"""The values in the queue: versioned msgpack arrays. Bytes on disk are frozen by golden tests.

To change one: raise its version here, keep the old tuple beside it, convert in its ``read_…``
function, add a golden file. A relay never writes an older version than it reads.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from zonemta_py.codec import unpacker
from zonemta_py.errors import QueueCorrupt

FORMAT = 1


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
    that a report is about. ``smtputf8``: the client declared it.
    """

    version: int
    sender: str
    header: bytes
    zones: tuple[str, ...]
    eight_bit: bool
    smtputf8: bool
    report_for: str
    origin: Origin


class Waiting(NamedTuple):
    """A recipient in ``delivery-zone/`` or ``deferred/``.

    ``number`` is its 0-based place among the recipients (``index`` in events), for life.
    ``attempts`` that ended, ``uncertain`` ones that a crash cut off. ``due_ms`` is 0 unless
    deferred. The last reply, its time and whether the sender was warned of the delay follow.
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
    warned: bool


class Inflight(NamedTuple):
    """``inflight/MSGID/N``: which recipients, by index, are in a transaction since when."""

    version: int
    boot: int
    zone: str
    indexes: tuple[int, ...]
    attempt: int
    since_ms: int


class Open(NamedTuple):
    """``open/MSGID``: which boot writes the body, and when it last got further."""

    version: int
    boot: int
    progress_ms: int


R = TypeVar("R", bound=tuple[Any, ...])


def _reader(kind: type[R]) -> Callable[[bytes], R]:
    """A function from stored bytes to ``kind``. It raises QueueCorrupt, for an unknown version too."""
    unpack = unpacker(kind)

    def read(data: bytes) -> R:
        record = unpack(data)
        if record[0] != FORMAT:
            raise QueueCorrupt(f"{kind.__name__}: version {record[0]} is not known here")
        return record

    return read


read_mark = _reader(Mark)
read_meta = _reader(Meta)
read_waiting = _reader(Waiting)
read_inflight = _reader(Inflight)
read_open = _reader(Open)


def new_waiting(number: int, domain: str, submitter: str) -> Waiting:
    """The record of a recipient that was just accepted."""
    return Waiting(FORMAT, number, domain, submitter, 0, 0, 0, 0, 0, "", "", False)
