"""Preparations of a scenario (keys, certificates, a queue with a history), the named workloads, and domains of recipients.

Queues are written into the LevelDB store directly, before the relay starts.
"""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.codec import crc32, pack
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    BodyRecord,
    EnvelopeRecord,
    Origin,
    new_recipient_record,
    pack_record,
)
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.sink.nameserver import NameServer, Records
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
    """Store a message for each of the domains of ``bench/setup.py``."""
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
    mark = BodyRecord(FORMAT, start_ms, len(_BODY), 1, crc32(_BODY))
    meta = EnvelopeRecord(
        version=FORMAT, sender="s@source.example", header=_HEADER, zones=(zone,), eight_bit=False, smtputf8=False,
        report_for="", origin=_ORIGIN,
    )  # fmt: skip
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


# ---- The named workloads of ``zonemta bench``, and groups of them.


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload: ``messages`` of ``size`` bytes to ``recipients`` each, over ``sessions``."""

    name: str
    title: str
    messages: int
    sessions: int
    recipients: int = 1
    size: int = 4096
    keep: bool = True  # many messages on one connection; else one connection for each
    per_second: int = 0  # the pace of submission; 0: as fast as the relay accepts
    delay_ms: int = 0  # before each reply of the sink
    connections: int = 100  # of the zone
    flood: int = 0  # messages of another submitter, queued before and not counted
    same_host: bool = False  # the flood comes from the same address, with senders of another domain
    backlog: int = 0  # recipients queued at the start, nine of ten for a domain that does not answer
    dkim: str = ""  # the kind of key that signs: rsa or ed25519
    tls: bool = False  # encrypted on both sides
    soak: bool = False  # figures over time as well
    churn: int = 0  # recipients stored in the queue and deleted before the start
    dead: int = 0  # domains that do not answer, a message for each queued at the start
    domains: int = 0  # of the recipients, each a destination of its own; 0: one smarthost
    auth: bool = False  # with AUTH on each connection
    pool: str = ""  # two addresses; "limited": with limits of the provider and of each, and a warm-up, none of which is reached

    @property
    def for_peers(self) -> bool:
        """True if other relays can run it without more preparations."""
        return not (self.dkim or self.backlog or self.tls or self.churn or self.domains or self.auth)

    def scaled(self, factor: float) -> "Scenario":
        """The scenario with ``factor`` times the messages, at least one for each session."""
        return replace(
            self,
            messages=max(self.sessions, int(self.messages * factor)),
            flood=int(self.flood * factor),
            backlog=int(self.backlog * factor),
            churn=int(self.churn * factor),
            dead=int(self.dead * factor),
        )


def _sessions(connections: int, domains: int) -> Scenario:
    """A message to each of ``domains``, or several, while the zone keeps up to ``connections`` sessions."""
    title = f"{connections:,} connections, {domains:,} " + ("domain" if domains == 1 else "domains")
    return Scenario(
        f"sessions-{connections}x{domains}",
        title,
        max(20_000, domains),
        30,
        connections=connections,
        domains=domains,
    )


LIMITED = ("kept", "connect", "list50")


def _by_mx(name: str, *, limited: bool) -> Scenario:
    """A named scenario from a pool to a domain found in DNS: limits of providers do not concern a smarthost."""
    base = next(each for each in _UNLIMITED if each.name == name)
    end, title, pool = ("limits", "limits", "limited") if limited else ("mx", "by MX", "free")
    return replace(base, name=f"{name}-{end}", title=f"{base.title}, {title}", domains=1, pool=pool)


SESSIONS = tuple(_sessions(c, d) for c in (100, 1_000, 10_000) for d in (1, 10_000, 50_000))
_UNLIMITED = (
    Scenario("kept", "4 KB, kept sessions", 20_000, 30),
    Scenario("connect", "4 KB, one connection each", 10_000, 30, keep=False),
    Scenario("auth", "4 KB, a connection with AUTH each", 10_000, 30, keep=False, auth=True),
    Scenario("list50", "4 KB, 50 recipients", 1_500, 20, recipients=50),
    Scenario("list1000", "4 KB, 1,000 recipients", 100, 10, recipients=1000),
    Scenario("64k", "64 KB, kept sessions", 4_000, 20, size=65_536),
    Scenario("20m", "20 MB, kept sessions", 60, 10, size=20 << 20),
    Scenario("dkim", "4 KB, DKIM with RSA-2048", 8_000, 30, dkim="rsa"),
    Scenario("dkim-ed25519", "4 KB, DKIM with Ed25519", 8_000, 30, dkim="ed25519"),
    Scenario("tls", "4 KB, TLS in and out", 8_000, 30, tls=True),
    Scenario("tls-connect", "4 KB, a TLS handshake each", 3_000, 30, keep=False, tls=True),
    Scenario("delay", "4 KB, 20 ms to the receiver", 5_000, 30, delay_ms=20),
    Scenario("idle", "single messages, idle relay", 200, 1, per_second=20),
    Scenario(
        "mixed",
        "single messages, a flood",
        200,
        1,
        per_second=20,
        delay_ms=20,
        connections=20,
        flood=8_000,
    ),
    Scenario(
        "senders",
        "single messages, a flood of the same host",
        200,
        1,
        per_second=20,
        delay_ms=20,
        connections=20,
        flood=4_000,
        same_host=True,
    ),
    Scenario("deep", "4 KB, a blocked backlog", 20_000, 30, backlog=1_000_000),
    Scenario(
        "dead",
        "single messages, 5,000 dead domains",
        400,
        1,
        per_second=20,
        dead=5_000,
        domains=200,
    ),
    Scenario("churned", "4 KB, 5 million came and went", 20_000, 30, churn=5_000_000),
    Scenario("soak", "1,000 a second, over time", 60_000, 30, per_second=1000, soak=True),
)
SCENARIOS = (
    *_UNLIMITED,
    *(_by_mx(name, limited=limited) for name in LIMITED for limited in (False, True)),
    *SESSIONS,
)
GROUPS = {
    "standard": ("kept", "connect", "list50", "64k", "20m"),
    "limits": tuple(each.name for each in SCENARIOS if each.name.endswith(("-mx", "-limits"))),
    "sessions": tuple(scenario.name for scenario in SESSIONS),
    "all": tuple(scenario.name for scenario in SCENARIOS),
}


# ---- Domains of recipients, living and dead in three ways: the name server and the dead hosts of a scenario.
#
# ``domains PORT LIVING DEAD``. Each of LIVING domains ``lN.sink.example`` is at 127.0.0.1. Of DEAD domains ``d0.dead.example``
# refuses connections, ``d1…`` drops their packets, ``d2…`` accepts them and says nothing, and so on in turn. Prints
# ``ready`` and the port of the name server.

REFUSING, DROPPING, SILENT = ADDRESSES = ("127.0.1.1", "127.0.1.2", "127.0.1.3")
SILENT_MAX = 4096  # connections that wait to be accepted


def records(living: int, dead: int) -> Records:
    """An MX for each dead domain, at one of the three addresses; an address for each living one."""
    found: dict[str, dict[str, list[str]]] = {
        f"mx{kind}.dead.example": {"A": [address]} for kind, address in enumerate(ADDRESSES)
    }
    for number in range(dead):
        found[f"d{number}.dead.example"] = {"MX": [f"10 mx{number % 3}.dead.example."]}
    for number in range(living):
        found[f"l{number}.sink.example"] = {"A": ["127.0.0.1"]}
    return found


def listen(address: str, port: int, backlog: int) -> socket.socket:
    """A socket on which nothing is accepted: connections beyond ``backlog`` wait for an answer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(backlog)
    return sock


def fill(address: str, port: int) -> list[socket.socket]:
    """Connections that fill a backlog of 0, so that the packets of others are dropped."""
    sockets = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((address, port))
        sockets.append(sock)
    return sockets


async def serve(port: int, living: int, dead: int) -> None:
    """Listen until SIGTERM."""
    names = NameServer(records(living, dead))
    names_port = await names.start()
    sockets = []
    if dead:
        sockets = [listen(SILENT, port, SILENT_MAX), listen(DROPPING, port, 0), *fill(DROPPING, port)]
    print("ready", names_port, flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    names.close()
    for sock in sockets:
        sock.close()


if __name__ == "__main__":
    asyncio.run(serve(*(int(argument) for argument in sys.argv[1:])))
