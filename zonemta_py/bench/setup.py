"""What a scenario needs before its relay starts: keys, certificates, a queue with a history.

Queues are written into the LevelDB store directly.
"""

import shutil
import subprocess
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.checksum import crc32
from zonemta_py.core.codec import pack
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, Mark, Meta, Origin, new_recipient_record, pack_record
from zonemta_py.queue.upkeep.recovery import begin_boot
from zonemta_py.storage.interface import Op
from zonemta_py.storage.leveldb_store import LevelDBStore

RSA = ("-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
BATCH_OPS = 5000
BLOCKED = 10  # one recipient in BLOCKED is for a domain that is reachable
_BODY = b"x" * 500 + b"\r\n"
_HEADER = b"From: source@source.example\r\nSubject: backlog\r\n"
_ORIGIN = Origin("backlog", "127.0.0.8", "backlog.example", "", "ESMTP")


def make_dkim_key(path: Path, kind: str) -> None:
    """Write a key: rsa (2048 bits) or ed25519. Raises LocalError without openssl."""
    options = RSA if kind == "rsa" else ("-algorithm", "ed25519")
    _openssl("genpkey", *options, "-out", str(path))


def make_certificate(certificate: Path, key: Path) -> None:
    """Write a self-signed certificate for localhost and its EC key. Raises LocalError without openssl."""
    files = ("-out", str(certificate), "-keyout", str(key))
    _openssl("req", "-x509", *EC, "-subj", "/CN=localhost", "-days", "2", *files)


def _openssl(*arguments: str) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        raise LocalError("the openssl command is needed for this scenario")
    done = subprocess.run([openssl, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LocalError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")


def _new_queue(directory: Path) -> LevelDBStore:
    store = LevelDBStore(directory / "db")
    begin_boot(store)
    return store


def fill_queue(directory: Path, recipients: int) -> None:
    """Store ``recipients`` messages with one recipient each.

    Nine of ten are waiting in zone ``blocked``, for one domain; the tenth is deferred for a day in ``default``.
    """
    store = _new_queue(directory)
    start_ms = clock.now_ms() - 3_600_000
    due_ms = start_ms + 86_400_000
    ops: list[Op] = []
    for number in range(recipients):
        ops += _one_message(start_ms, due_ms, number)
        if len(ops) >= BATCH_OPS:
            store.write(store.batch(ops, sync=False))
            ops.clear()
    store.write(store.batch(ops, sync=True))
    store.close()


def fill_dead(directory: Path, domains: int) -> None:
    """Store a message for each of the domains of ``bench/domains.py``."""
    store = _new_queue(directory)
    start_ms = clock.now_ms() - 3_600_000
    ops: list[Op] = []
    for number in range(domains):
        message, domain = _message_id(start_ms, number), f"d{number}.dead.example"
        record = new_recipient_record(0, domain, _ORIGIN.submitter)
        ops += _message_ops(message, start_ms, "default")
        ops.append((keys.waiting_key("default", message, f"{number}@{domain}"), pack_record(record)))
    store.write(store.batch(ops, sync=True))
    store.close()


def _one_message(start_ms: int, due_ms: int, number: int) -> list[Op]:
    """The keys of message ``number``."""
    message = _message_id(start_ms, number)
    blocked = number % BLOCKED != 0
    zone, domain = ("blocked", "blocked.example") if blocked else ("default", f"d{number % 500}.example")
    address = f"{number}@{domain}"
    record = new_recipient_record(0, domain, _ORIGIN.submitter)
    stored = _message_ops(message, start_ms, zone)
    if blocked:
        return [*stored, (keys.waiting_key(zone, message, address), pack_record(record))]
    deferred = record._replace(due_ms=due_ms, attempts=1)
    return [
        *stored,
        (keys.deferred_key(zone, message, address), pack_record(deferred)),
        (keys.due_key(due_ms, zone, message), b""),
    ]


def _message_ops(message: str, start_ms: int, zone: str) -> list[Op]:
    """The keys of a message except those of its recipients."""
    mark = Mark(FORMAT, start_ms, len(_BODY), 1, crc32(_BODY))
    meta = Meta(FORMAT, "s@source.example", _HEADER, (zone,), False, False, "", _ORIGIN)
    return [
        (keys.chunk_key(message, 1), _BODY),
        (keys.mark_key(message), pack(mark)),
        (keys.meta_key(message), pack_record(meta)),
    ]


def churn_queue(directory: Path, recipients: int) -> None:
    """Store ``recipients``, fifty to a message, and delete them again.

    Without a compaction other than LevelDB's own, so that a scan meets as many deleted keys as possible.
    """
    store = _new_queue(directory)
    start_ms = clock.now_ms() - 3_600_000
    record = pack_record(new_recipient_record(0, "gone.example", _ORIGIN.submitter))
    for first in range(0, recipients, BATCH_OPS):
        stored = [
            keys.waiting_key("default", _message_id(start_ms, number // 50), f"{number}@gone.example")
            for number in range(first, min(first + BATCH_OPS, recipients))
        ]
        store.write(store.batch([(key, record) for key in stored], sync=False))
        store.write(store.batch([(key, None) for key in stored], sync=False))
    store.write(store.batch([], sync=True))
    store.close()


def _message_id(start_ms: int, number: int) -> str:
    return f"{start_ms + number // 1000:012x}{number % 1000:06x}0000ff"
