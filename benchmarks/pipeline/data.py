"""Synthetic lists and event logs, reproducible for the same numbers."""

import random
from itertools import chain
from pathlib import Path

from zonemta_py.core.codec import to_json
from zonemta_py.events.segments import Segment

DOMAINS = ("gmail.com",) * 30 + ("outlook.com",) * 12 + ("yahoo.com",) * 10 + ("gmx.de", "web.de", "icloud.com", "orange.fr")  # fmt: skip
SMALL = 50_000  # other domains
SUPPRESSED_STEP = 25  # every so many addresses of a list are suppressed
SEGMENT = 180_000  # events: a minute of a busy relay
FRAME = 500  # events of a write
TWO_DAYS_MS = 172_800_000
HOUR_MS = 3_600_000
NOON_MS = 1_800_000_000_000


def write_list(path: Path, rows: int) -> None:
    """A CSV with 8 % duplicates, 1 % bad rows, and some upper case and spaces."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        file.write("email,name\n")
        for number in range(rows):
            if number % 100 == 99:
                file.write(f"not an address {number},x\n")
                continue
            reader = rng.randrange(rows) if number % 12 == 5 else number
            domain = DOMAINS[reader % len(DOMAINS)] if reader % 3 else f"firm{reader % SMALL}.example"
            user = f"User.{reader}" if number % 20 == 3 else f"user.{reader}"
            file.write(f" {user}@{domain},Reader {reader}\n" if number % 50 == 7 else f"{user}@{domain},Reader {reader}\n")  # fmt: skip


def write_suppression(path: Path, rows: int, entries: int) -> None:
    """About ``entries`` addresses, of which at most 4 % of the list and the others not in it, and a hundred domains."""
    listed = range(0, rows, max(SUPPRESSED_STEP, rows // entries))
    with path.open("w", encoding="utf-8") as file:
        for reader in chain(listed, range(rows, rows + entries - len(listed))):
            domain = DOMAINS[reader % len(DOMAINS)] if reader % 3 else f"firm{reader % SMALL}.example"
            file.write(f"user.{reader}@{domain}\n")
        file.writelines(f"@firm{n}.example\n" for n in range(0, SMALL, SMALL // 100))


def write_events(directory: Path, events: int) -> None:
    """Sealed segments of attempts, by the relay's own writer: 88 % delivered, 9 % deferred, 3 % bounced, over two days."""
    rng = random.Random(2)
    refused = {
        "deferred": [(421, "4.7.0", "Try again later, closing connection. id {}"), (450, "4.7.1", "Greylisted for {} seconds")],
        "bounced": [(550, "5.1.1", "<{}> no such user here"), (552, "5.2.2", "mailbox full")],
    }  # fmt: skip
    for first in range(1, events + 1, SEGMENT):
        segment = Segment(directory, "abcdef", first, first - 1)
        for start in range(first, min(events + 1, first + SEGMENT), FRAME):
            seqs = range(start, min(events + 1, start + FRAME))
            lines = [to_json(_record(seq, events, rng, refused)) + b"\n" for seq in seqs]
            segment.append(b"".join(lines), seqs[-1])
        segment.seal(NOON_MS + min(events, first + SEGMENT) * TWO_DAYS_MS // events)


def write_hours(directory: Path, hours: range, events: int) -> None:
    """A segment for each hour of ``hours`` since NOON_MS, with ``events`` of that hour."""
    rng = random.Random(hours.start)
    refused = {"deferred": [(421, "4.7.0", "Try again later")], "bounced": [(550, "5.1.1", "<{}> no such user here")]}  # fmt: skip
    for hour in hours:
        first = 1 + hour * events
        segment = Segment(directory, "abcdef", first, first - 1)
        lines = []
        for seq in range(first, first + events):
            record = _record(seq, events, rng, refused)
            at_ms = NOON_MS + hour * HOUR_MS + (seq - first) * HOUR_MS // events
            record |= {"time_ms": at_ms, "created_ms": at_ms - rng.randrange(60_000)}
            lines.append(to_json(record) + b"\n")
        segment.append(b"".join(lines), first + events - 1)
        segment.seal(NOON_MS + (hour + 1) * HOUR_MS)


def _record(
    seq: int, events: int, rng: random.Random, refused: dict[str, list[tuple[int, str, str]]]
) -> dict[str, object]:
    drawn = rng.random()
    event = "delivered" if drawn < 0.88 else "deferred" if drawn < 0.97 else "bounced"
    code, status, text = (250, "2.0.0", "Ok: queued as {}") if event == "delivered" else rng.choice(refused[event])  # fmt: skip
    domain = DOMAINS[seq % len(DOMAINS)] if seq % 3 else f"firm{seq % SMALL}.example"
    time_ms = NOON_MS + seq * TWO_DAYS_MS // events
    return {
        "node": "abcdef", "seq": seq, "position": 0, "event": event, "time_ms": time_ms,
        "message": f"{seq:024x}", "index": 0, "recipient": f"user.{seq}@{domain}", "zone": f"z{seq % 4}",
        "domain": domain, "sender": "news@sender.example", "submitter": "list", "attempt": 1 + (drawn < 0.05),
        "created_ms": time_ms - rng.randrange(60_000), "phase": "dot", "code": code, "status": status,
        "reply": text.format(seq), "mx": f"mx.{domain}", "mx_ip": "192.0.2.1", "source_ip": f"203.0.113.{seq % 8}",
        "tls": True, "duration_ms": rng.randrange(20, 2000),
    }  # fmt: skip
