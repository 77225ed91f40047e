"""The values in the queue: versioned msgpack arrays. Bytes on disk are frozen by golden tests.

Records with the address of a recipient, or with what is sent, end with the CRC-32 of their bytes since version 8 (``pack_record``): a
change that no check of the store finds is not sent.

To change one: raise its version, keep the old tuple, convert it in its ``read_…`` function, and add a
golden file. A relay never writes an older version than it reads.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from zonemta_py.core.codec import crc32, from_json, pack, unpacker
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format.keys import HELD_MS, created_ms

FORMAT = 8
READABLE = (1, 2, 3, 4, 5, 6, 7, 8)
_FIRST_SEALED = b"\x08"  # the first version of a record with a sum
SUM_BYTES = 4
_OUTBOX_SUM_BYTES = 32
_AS_BLANKS, _AS_DIGITS = bytes.maketrans(b"01", b" \t"), bytes.maketrans(b" \t", b"01")
FLOW_SEPARATOR = " @"  # between the parts of a flow
TENANT_FLOW = "tenant:"  # in front of the name; no user has a colon in theirs
PRIORITIES = ("urgent", "normal", "nonurgent")  # RFC 2156
URGENT_FLOW = f"{FLOW_SEPARATOR}!urgent"  # at the end of a flow
NONURGENT_FLOW = f"{FLOW_SEPARATOR}!nonurgent"


class RecipientState(IntEnum):
    """The place of a recipient. NOT_BEFORE: deferred until the time that its submitter gave."""

    WAITING = 0
    DEFERRED = 1
    NOT_BEFORE = 2
    HELD = 3


_WAITING, _DEFERRED, _NOT_BEFORE, _HELD = RecipientState


class CensusLabels(NamedTuple):
    """The labels by which the recipients of a message are counted; ``born_ms`` is unix ms."""

    tenant: str
    campaign: str
    born_ms: int


class Origin(NamedTuple):
    """The origin of a message. ``protocol`` as in RFC 3848. All empty for reports; ``tenant`` also without tenants."""

    listener: str
    client_ip: str
    helo: str
    user: str
    protocol: str
    tenant: str = ""  # since version 5

    @property
    def submitter(self) -> str:
        """The user, else the address of the client, else empty."""
        return self.user or self.client_ip

    @property
    def owner(self) -> str:
        """Whose the things are that clients share: the tenant's, else the user's, else the address's of the client.

        Behind a proxy, or on one host, all have one address. No user has a colon in theirs.
        """
        return f"{TENANT_FLOW}{self.tenant}" if self.tenant else self.submitter


class BodyRecord(NamedTuple):
    """``message/MSGID/#``. ``size`` and ``crc`` (CRC-32) are of the body in its ``chunks`` chunks."""

    version: int
    created_ms: int
    size: int
    chunks: int
    crc: int


class DeliveryOptions(NamedTuple):
    """The requests of the submitter. Times are unix ms, 0 for none.

    No attempt is made before ``not_before_ms``, and none from ``expires_ms`` on; then the sender gets a report,
    unless ``silent``. ``notify_ms``: when a report of delay is due. ``priority``: one of PRIORITIES, or empty.
    ``quarantined``: the message was held at intake.
    """

    not_before_ms: int = 0
    expires_ms: int = 0
    silent: bool = False
    notify_ms: int = 0
    priority: str = ""
    quarantined: bool = False


NO_OPTIONS = DeliveryOptions()
LABEL_MAX = 64  # characters of a campaign or a tag


class EnvelopeRecord(NamedTuple):
    """``message/MSGID/*``. ``header`` is the block that is sent, each field ending in CRLF.

    ``zones`` of its recipients. ``report_for``: in a report, the id of the message it is about.
    ``smtputf8``: the client declared it. ``ret`` (FULL, HDRS or empty) and ``envid`` (xtext) as in
    RFC 3461. ``warned``: a warning of delay was sent. ``body_hash`` for DKIM (relaxed, SHA-256); empty
    for a message that is not signed. ``born_ms``: when the mail was first accepted, if that was under
    another id; else 0. ``campaign`` and ``tags``: what the submitter called it.
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
    campaign: str = ""  # since version 5
    tags: tuple[str, ...] = ()
    options: DeliveryOptions = NO_OPTIONS


class RecipientRecord(NamedTuple):
    """A recipient in ``delivery-zone/`` or ``deferred/``.

    ``recipient_index``: its 0-based position among the recipients of its message, which never changes.
    ``attempts`` that ended; ``uncertain`` ones in a row that a crash interrupted. ``due_ms`` is 0
    unless deferred, keys.HELD_MS when held. ``last_ms``, ``code``, ``status`` and ``text`` of the last
    reply. ``flow``: the queue among others of its destination; its first part, which FLOW_SEPARATOR ends, is
    TENANT_FLOW and the tenant, else the user, else the address of the client; the second is the user in a
    tenant, or without a user the domain of the sender; the last URGENT_FLOW or NONURGENT_FLOW, if it has that priority.
    ``notify``: flags of ``smtp.reports.dsn``; ``orcpt``: the parameter as received. ``source``: from which address the
    last attempt was made; ``reply_class``: the class of its reply. ``held_by``: the tenant that holds it by a token of its
    own, which may release it; empty for every other reason. ``blocked``: how many attempts were refused for good because of our address.
    """

    version: int
    recipient_index: int
    domain: str
    flow: str
    attempts: int
    uncertain: int
    due_ms: int
    last_ms: int
    code: int
    status: str
    text: str
    notify: int
    orcpt: str
    source: str = ""  # since version 6
    reply_class: str = ""  # since version 7
    held_by: str = ""  # since version 8
    blocked: int = 0  # since version 8

    @property
    def submitter(self) -> str:
        """Whose turn it is in fair queuing: the tenant's, else the user's, else that of the client's address."""
        return self.flow.partition(FLOW_SEPARATOR)[0]

    @property
    def state(self) -> RecipientState:
        """The place of the recipient: waiting, deferred or held."""
        if not self.due_ms:
            return _WAITING
        if self.due_ms == HELD_MS:
            return _HELD
        return _DEFERRED if self.attempts or self.uncertain or self.last_ms else _NOT_BEFORE


class Inflight(NamedTuple):
    """``inflight/MSGID/N``: a transaction under way, and the indexes of its recipients."""

    version: int
    boot: int
    zone: str
    indexes: tuple[int, ...]
    attempt: int
    since_ms: int


class Note(NamedTuple):
    """A line of a future report; under ``bounce/MSGID/INDEX`` until its message ends.

    ``action`` as in RFC 3464: failed, delayed, relayed, delivered. ``expired``: it was given up.
    """

    version: int
    zone: str
    recipient_index: int
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


class DigestEntry(NamedTuple):
    """``digest/GROUP/REPORT``: a report that is not sent by itself, because its receiver gets many.

    ``to`` and ``sender``: of its envelope. ``zone``: that of the first recipient. ``message``: what it is about.
    """

    version: int
    to: str
    sender: str
    zone: str
    message: str
    notes: tuple[Note, ...]


class SubmissionRecord(NamedTuple):
    """``submitted/KEY…``: the ``message`` that was accepted. Valid until ``expires_ms`` (unix ms).

    ``recipients``: empty; in ``submitted/KEY`` of an earlier version the digests of all, of 16 bytes, concatenated.
    """

    version: int
    expires_ms: int
    message: str
    recipients: bytes


class Open(NamedTuple):
    """``open/MSGID``: the boot that receives the body, and its last progress (unix ms)."""

    version: int
    boot: int
    progress_ms: int


class _RecipientRecord1(NamedTuple):
    """Version 1 of RecipientRecord."""

    version: int
    recipient_index: int
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

    def upgrade(self) -> RecipientRecord:
        """The record in the current version."""
        return RecipientRecord(*self[:-1], 0, "")


R = TypeVar("R", bound=tuple[Any, ...])


def _reader(kind: type[R]) -> Callable[[bytes], R]:
    """A function from stored bytes to ``kind``. It raises QueueCorrupt, also for an unknown version."""
    unpack = unpacker(kind)

    def read(data: bytes) -> R:
        record = unpack(data)
        if record[0] not in READABLE:
            raise QueueCorrupt(f"{kind.__name__}: version {record[0]} is not supported")
        return record

    return read


def _sealed_reader(kind: type[R]) -> Callable[[bytes], R]:
    """As ``_reader``, for a record with a sum. An earlier version has none."""
    unpack = unpacker(kind)

    def read(data: bytes) -> R:
        # The version is the first element, behind the head of an array of up to 15 elements, or of more.
        if (data[3:4] if data[:1] == b"\xdc" else data[1:2]) >= _FIRST_SEALED:
            body = data[:-SUM_BYTES]
            if crc32(body) != int.from_bytes(data[-SUM_BYTES:], "big"):
                raise QueueCorrupt(f"{kind.__name__}: its bytes and its checksum differ")
            data = body
        record = unpack(data)
        if record[0] not in READABLE:
            raise QueueCorrupt(f"{kind.__name__}: version {record[0]} is not supported")
        return record

    return read


SealedRecord = RecipientRecord | EnvelopeRecord | Note | DigestEntry


def pack_record(record: SealedRecord) -> bytes:
    """The bytes of a record with its sum, always of the current version."""
    if record.version != FORMAT:
        record = record._replace(version=FORMAT)
    data = pack(record)
    return data + crc32(data).to_bytes(SUM_BYTES, "big")


def read_recipient_record(data: bytes) -> RecipientRecord:
    """The record of a recipient, of any version. Raises QueueCorrupt."""
    try:
        return _read_recipient_record2(data)
    except QueueCorrupt:
        if data[1:2] != b"\x01":
            raise
        return _read_recipient_record1(data).upgrade()


read_mark = _reader(BodyRecord)
read_meta = _sealed_reader(EnvelopeRecord)
read_note = _sealed_reader(Note)
read_digest_entry = _sealed_reader(DigestEntry)
read_submitted = _reader(SubmissionRecord)
_read_recipient_record2 = _sealed_reader(RecipientRecord)
_read_recipient_record1 = _reader(_RecipientRecord1)
read_inflight = _reader(Inflight)
read_open = _reader(Open)


def born(meta: EnvelopeRecord, message: str) -> int:
    """When the mail of ``message`` was first accepted (unix ms); its age counts from then."""
    return meta.born_ms or created_ms(message)


def pack_outbox(lines: bytes) -> bytes:
    """The value of an ``outbox/`` key: the JSON lines of a group commit, with their sum.

    It is the white space at the end of the last line, a space for each 0 and a tab for each 1: all versions read these lines.
    """
    return lines[:-1] + format(crc32(lines), "032b").encode().translate(_AS_BLANKS) + b"\n"


def read_outbox(value: bytes) -> bytes:
    """The JSON lines of an ``outbox/`` value. Where there is no sum, as up to version 7, each line is parsed. Raises QueueCorrupt."""
    at = -_OUTBOX_SUM_BYTES - 1
    blanks = value[at:-1]
    if len(blanks) == _OUTBOX_SUM_BYTES and not blanks.strip(b" \t"):
        lines = value[:at] + b"\n"
        if int(blanks.translate(_AS_DIGITS), 2) == crc32(lines) and value.endswith(b"\n"):
            return lines
        raise QueueCorrupt("event lines: their bytes and their checksum differ")
    if not value.endswith(b"}\n"):
        raise QueueCorrupt("not event lines")
    for line in value.splitlines():
        try:
            event = from_json(line)
        except ValueError as exc:
            raise QueueCorrupt(f"not event lines: {exc}") from exc
        if not isinstance(event, dict) or not {"node", "seq", "position", "event"} <= event.keys():
            raise QueueCorrupt("not event lines")
    return value


def labels_of(meta: EnvelopeRecord, message: str) -> CensusLabels:
    """The labels by which the recipients of ``message`` are counted."""
    born_ms = meta.born_ms or created_ms(
        message
    )  # as ``born``, without its call: each message comes here
    return CensusLabels(meta.origin.tenant, meta.campaign, born_ms)


def starts(meta: EnvelopeRecord, message: str) -> int:
    """When ``message`` could first be sent (unix ms): the time to deliver it counts from then."""
    return max(born(meta, message), meta.options.not_before_ms)


def new_recipient_record(
    index: int, domain: str, flow: str, notify: int = 0, orcpt: str = ""
) -> RecipientRecord:
    """The record of a new recipient."""
    return RecipientRecord(
        version=FORMAT, recipient_index=index, domain=domain, flow=flow, attempts=0, uncertain=0, due_ms=0, last_ms=0, code=0,
        status="", text="", notify=notify, orcpt=orcpt,
    )  # fmt: skip
