"""The key layout of the queue: the contract, and the only module that composes keys.

    message/MSGID/000001 …            the body, 65,536 bytes each, the last shorter; in LevelDB, of 32 KiB or
                                      more, a reference to a segment file (``storage/segments.py``)
    message/MSGID/#                   its presence means: accepted
    message/MSGID/*                   envelope, header block, origin
    delivery-zone/ZONE/MSGID/RCPT     a waiting recipient
    deferred/ZONE/MSGID/RCPT          a deferred recipient
    due/DUE/ZONE/MSGID                when to wake deferred recipients of that message
    spill/ZONE/DESTINATION/MSGID      waiting recipients that did not fit the ready window
    inflight/MSGID/N                  a transaction under way
    open/MSGID                        a body of more than one chunk is being written
    cleanup/MSGID                     chunks still to be removed
    bounce/MSGID/INDEX                a failure noted for a later report
    digest/GROUP/REPORT               a report for the next digest of its receiver
    submitted/KEY                     the first message under a submission key
    submitted/KEY/CONTENT             the first message under it with some content
    submitted/KEY/CONTENT/RECIPIENT   the message of that content that a recipient has
    outbox/SEQ                        the events of one group commit
    segment/NUMBER/MSGID/000001       this chunk is in segment NUMBER; the store's own, never seen above it
    meta/…                            format, node, boot count, ids, the last SEQ in the event log
    meta/limit/NAME/LENGTH/SLOT/KIND/SUBJECT  what was submitted in a slot of a window of LENGTH ms
    meta/sending/KIND/LENGTH/SLOT/ADDRESS/PROVIDER  what was sent in a slot of a window of LENGTH ms
    meta/sending-state/KIND/ADDRESS/PROVIDER  the pace (KIND pace) or the warm-up of an address at a provider
    meta/held/NAME/deferred/ZONE/MSGID/RCPT  a recipient that is held for the suspension NAME, which is percent-encoded
    meta/damaged/KEY                  what was under KEY, an OUTBOX key, and could not be read
    meta/rate/ZONE                    when the next message is due by the rate of the zone (unix ms)

MSGID is 24 lower-case hex digits, DUE 13 decimal digits (ms), SEQ 16 hex digits. RCPT is the last
part because it may contain any byte. A range ends at ``prefix + 0xff``: addresses may be UTF-8.
"""

import re
from functools import lru_cache
from urllib.parse import quote, unquote

CHUNK_BYTES = 65_536
CHUNKS_MAX = 999_999

MESSAGE = b"message/"
WAITING = b"delivery-zone/"
DEFERRED = b"deferred/"
DUE = b"due/"
SPILL = b"spill/"
INFLIGHT = b"inflight/"
OPEN = b"open/"
CLEANUP = b"cleanup/"
BOUNCE = b"bounce/"
DIGEST = b"digest/"
SUBMITTED = b"submitted/"
OUTBOX = b"outbox/"
SEGMENT = b"segment/"

META = b"meta/"
META_FORMAT = b"meta/format"
META_NODE = b"meta/node"
META_BOOT = b"meta/boot"
META_DAMAGED = b"meta/damaged/"
META_IDS = b"meta/ids"
META_STOPPED = b"meta/stopped"
META_EXPORTED = b"meta/exported"
META_LOG_BEGINS = b"meta/log-begins"  # of an imported queue: ``meta/exported`` at that time
META_HELD = b"meta/held/"
META_LIMIT = b"meta/limit/"
META_RATE = b"meta/rate/"
META_SENDING = b"meta/sending/"
META_SENDING_STATE = b"meta/sending-state/"
META_SUSPENDED = b"meta/suspended/"
META_VERIFIED = b"meta/verified/"
META_SEGMENT = b"meta/segment"

MESSAGE_ID_LENGTH = 24
CHUNK_KEY_BYTES = len(MESSAGE) + MESSAGE_ID_LENGTH + len("/000001")
HELD_MS = 9_999_999_999_999  # the due time of a held recipient: the greatest DUE


_ZONE, _ID = r"[a-z0-9][a-z0-9_-]*", rf"[0-9a-f]{{{MESSAGE_ID_LENGTH}}}"
LAYOUT = {  # what follows a prefix in the keys of the queue, as text; an address may be anything
    MESSAGE: re.compile(rf"{_ID}/(#|\*|[0-9]{{6}})"),
    WAITING: re.compile(rf"{_ZONE}/{_ID}/.+", re.DOTALL),
    DEFERRED: re.compile(rf"{_ZONE}/{_ID}/.+", re.DOTALL),
    DUE: re.compile(rf"[0-9]{{13}}/{_ZONE}/{_ID}"),
    SPILL: re.compile(rf"{_ZONE}/[^/]+/{_ID}"),
    INFLIGHT: re.compile(rf"{_ID}/[0-9]+"),
    OPEN: re.compile(_ID),
    CLEANUP: re.compile(_ID),
    BOUNCE: re.compile(rf"{_ID}/.+"),
    DIGEST: re.compile(rf"[0-9a-f]{{16}}/{_ID}"),
    SUBMITTED: re.compile(r"[\x20-\x7e]+"),
    OUTBOX: re.compile(r"[0-9a-f]{16}"),
}


def is_key(space: bytes, key: bytes) -> bool:
    """True if a key that begins with ``space`` is one that this module composes."""
    try:
        return LAYOUT[space].fullmatch(key[len(space) :].decode()) is not None
    except UnicodeDecodeError:
        return False


def end_of(prefix: bytes) -> bytes:
    """The exclusive end of the range of keys that begin with ``prefix``."""
    return prefix + b"\xff"


def message_prefix(message: str) -> bytes:
    """The prefix of the chunks and both markers of a message."""
    return f"message/{message}/".encode()


def chunk_key(message: str, number: int) -> bytes:
    """Chunk ``number``, 1 to CHUNKS_MAX."""
    return b"message/%b/%06d" % (message.encode(), number)


def is_chunk(key: bytes) -> bool:
    """True if the key is that of a chunk."""
    return key.startswith(MESSAGE) and key[-1:].isdigit()


def chunk_number(key: bytes) -> int:
    """The number of the chunk of this key; 0 for every other key."""
    if len(key) != CHUNK_KEY_BYTES or not key.startswith(MESSAGE) or not key[-6:].isdigit():
        return 0
    return int(key[-6:])


def segment_key(number: int, chunk: bytes) -> bytes:
    """Segment ``number`` has the chunk of this key."""
    return b"segment/%08d/%b" % (number, chunk[len(MESSAGE) :])


def segment_prefix(number: int) -> bytes:
    """The prefix of the SEGMENT keys of a segment."""
    return b"segment/%08d/" % number


def parse_segment(key: bytes) -> tuple[int, bytes]:
    """The number of the segment of a SEGMENT key, and the key of the chunk."""
    _, number, chunk = key.split(b"/", 2)
    return int(number), MESSAGE + chunk


def mark_key(message: str) -> bytes:
    """The marker ``#``."""
    return f"message/{message}/#".encode()


def meta_key(message: str) -> bytes:
    """The envelope and header block ``*``."""
    return f"message/{message}/*".encode()


def waiting_key(zone: str, message: str, recipient: str) -> bytes:
    """A waiting recipient."""
    return f"delivery-zone/{zone}/{message}/{recipient}".encode()


def deferred_key(zone: str, message: str, recipient: str) -> bytes:
    """The same recipient, deferred."""
    return f"deferred/{zone}/{message}/{recipient}".encode()


def zone_prefix(space: bytes, zone: str, message: str = "") -> bytes:
    """The prefix of the keys of ``zone``, or of one message in it, in WAITING, DEFERRED or SPILL."""
    tail = f"{message}/" if message else ""
    return space + f"{zone}/{tail}".encode()


def parse_recipient(key: bytes) -> tuple[str, str, str]:
    """Zone, message and recipient of a WAITING or DEFERRED key."""
    _, zone, message, recipient = key.decode().split("/", 3)
    return zone, message, recipient


def due_key(due_ms: int, zone: str, message: str) -> bytes:
    """When to wake deferred recipients (unix ms)."""
    return b"due/%013d/%b/%b" % (due_ms, zone.encode(), message.encode())


def parse_due(key: bytes) -> tuple[int, str, str]:
    """Due time (ms), zone and message of a DUE key."""
    _, due, zone, message = key.decode().split("/")
    return int(due), zone, message


def spill_key(zone: str, destination: str, message: str) -> bytes:
    """``destination`` has waiting recipients of ``message`` outside the ready window."""
    return f"spill/{zone}/{destination}/{message}".encode()


def parse_spill(key: bytes) -> tuple[str, str, str]:
    """Zone, destination and message of a SPILL key."""
    _, zone, destination, message = key.decode().split("/")
    return zone, destination, message


def inflight_key(message: str, number: int) -> bytes:
    """Transaction ``number`` (counted per boot) of a message."""
    return b"inflight/%b/%d" % (message.encode(), number)


def owner_of(key: bytes) -> str:
    """The message of a MESSAGE, INFLIGHT, OPEN, CLEANUP or BOUNCE key."""
    return key.split(b"/", 2)[1].decode()


def open_key(message: str) -> bytes:
    """A body of more than one chunk is being received."""
    return b"open/" + message.encode()


def cleanup_key(message: str) -> bytes:
    """Chunks are still to be removed."""
    return b"cleanup/" + message.encode()


def bounce_key(message: str, index: int) -> bytes:
    """The noted failure of recipient ``index``."""
    return b"bounce/%b/%06d" % (message.encode(), index)


def bounce_prefix(message: str) -> bytes:
    """The prefix of the noted failures of a message."""
    return b"bounce/%b/" % message.encode()


def submitted_key(digest: str, *parts: str) -> bytes:
    """A submission key, by its digest (hex); ``parts``: those of a content that it has, and of a recipient of that."""
    return SUBMITTED + "/".join((digest, *parts)).encode()


def submission_of(key: bytes) -> str:
    """The digest of the submission key of a SUBMITTED key."""
    return key[len(SUBMITTED) :].partition(b"/")[0].decode("ascii", "replace")


def digest_key(group: str, report: str) -> bytes:
    """A report (24 hex digits) that belongs to the digest of a receiver, whose ``group`` is 16 hex digits."""
    return f"digest/{group}/{report}".encode()


def parse_digest(key: bytes) -> tuple[str, str]:
    """Group and report of a DIGEST key."""
    _, group, report = key.decode().split("/")
    return group, report


def rate_key(zone: str) -> bytes:
    """When the next token of a zone's rate is due."""
    return META_RATE + zone.encode()


def held_prefix(name: str) -> bytes:
    """The prefix of the recipients that are held for the suspension ``name``."""
    return META_HELD + quote(name, safe="").encode() + b"/"


def held_key(name: str, recipient: bytes) -> bytes:
    """``recipient``, a DEFERRED key, is held for the suspension ``name``."""
    return held_prefix(name) + recipient


def parse_held(key: bytes) -> tuple[str, bytes]:
    """The arguments of ``held_key``."""
    name, _, recipient = key[len(META_HELD) :].partition(b"/")
    return unquote(name.decode()), recipient


def limit_key(name: str, length_ms: int, slot: int, kind: str, subject: str) -> bytes:
    """The key of the use of ``subject`` in a slot of a limit's window."""
    return META_LIMIT + f"{name}/{length_ms}/{slot:013d}/{kind}/{subject}".encode()


def parse_limit(key: bytes) -> tuple[str, int, int, str, str]:
    """Name, length of the window (ms), slot, kind and subject of a limit key."""
    name, length_ms, slot, kind, subject = key[len(META_LIMIT) :].decode().split("/", 4)
    return name, int(length_ms), int(slot), kind, subject


def outbox_key(seq: int) -> bytes:
    """The events of group commit ``seq``."""
    return b"outbox/%016x" % seq


def parse_outbox(key: bytes) -> int:
    """The sequence number of an OUTBOX key."""
    return int(key[len(OUTBOX) :], 16)


def damaged_key(key: bytes) -> bytes:
    """The key under which the value of ``key``, an OUTBOX key, is kept when it cannot be read."""
    return META_DAMAGED + key


def created_ms(message: str) -> int:
    """The time in a message id: its first 12 hex digits are unix milliseconds."""
    return int(message[:12], 16)


@lru_cache(maxsize=10_000)
def sending_key(kind: str, length_ms: int, slot: int, address: str, provider: str) -> bytes:
    """The key of the use of a limit of ``kind`` by an address at a provider, in a slot of a window."""
    return META_SENDING + f"{kind}/{length_ms}/{slot:013d}/{address}/{provider}".encode()


def parse_sending(key: bytes) -> tuple[str, int, int, str, str]:
    """The arguments of ``sending_key``."""
    kind, length_ms, slot, address, provider = key[len(META_SENDING) :].decode().split("/", 4)
    return kind, int(length_ms), int(slot), address, provider


def sending_state_key(kind: str, provider: str, address: str) -> bytes:
    """The state of ``kind`` (pace, warmup) of an address at a provider."""
    return META_SENDING_STATE + f"{kind}/{address}/{provider}".encode()


def parse_sending_state(key: bytes) -> tuple[str, str, str]:
    """The arguments of ``sending_state_key``."""
    kind, address, provider = key[len(META_SENDING_STATE) :].decode().split("/", 2)
    return kind, provider, address


# ---- Message ids: 24 lower-case hex digits, ordered by time, unique across nodes, never reused.
#
# Layout: 12 digits unix ms, 6 digits counter within that ms, 6 digits node. Each process
# of a node has a worker index, which is the upper 7 bits of the counter; that of the queue's process is 0.
# When the clock goes back, ids do not: the highest one issued is on disk, written with the batches that
# use ids.

WORKER_SHIFT = 17
WORKERS_MAX = 1 << (24 - WORKER_SHIFT)


class MessageIds:
    """Issues ids greater than ``last``, the highest id known, as ``meta/ids`` stores it."""

    def __init__(self, node: str, last: str, worker: int = 0) -> None:
        assert len(node) == 6
        assert 0 <= worker < WORKERS_MAX
        self._node = node
        self._first = worker << WORKER_SHIFT
        self._end = (worker + 1) << WORKER_SHIFT
        self._ms = 0
        self._counter = self._first
        self.last = ""
        if last:
            self.note(last)

    def next(self, now_ms: int) -> str:
        """An id greater than all before it."""
        if now_ms > self._ms:
            self._ms, self._counter = now_ms, self._first
        elif self._counter + 1 >= self._end:
            self._ms, self._counter = self._ms + 1, self._first
        else:
            self._counter += 1
        self.last = f"{self._ms:012x}{self._counter:06x}{self._node}"
        return self.last

    def note(self, message: str) -> None:
        """Another process issued ``message``, or a previous boot: the following ids are greater."""
        if message > self.last:
            self.last = message
            self._ms, counter = int(message[:12], 16), int(message[12:18], 16)
            self._counter = counter if self._first <= counter < self._end else self._end


def last_id_before(now_ms: int) -> str:
    """An id that is greater than every one made before ``now_ms``, and less than those made from then on."""
    return f"{now_ms - 1:012x}" + "f" * 12
