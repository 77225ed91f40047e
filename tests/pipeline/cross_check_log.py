"""The event log of the cross-check: 500,000 records with repeats, late and damaged segments, hours that are unusual."""

import random
from pathlib import Path
from typing import Any

from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS
from zonemta_py.core.codec import to_json
from zonemta_py.events.segments import Segment

RECORDS = 500_000
FRAME, SEGMENT = 1000, 20_000  # records
REPEATS = 1000  # 0.2 %
NODES = ("abcdef", "fedcba")
DOMAINS = ("gmail.com", "outlook.com", "yahoo.de", "gmx.de", *(f"firm{n}.example" for n in range(400)))
REPLIES = {
    "deferred": [(421, "4.7.0", "Too many connections from 10.0.0.{}"), (451, "4.7.1", "Greylisted, try again in {} s"), (0, "4.4.1", "timeout")],
    "bounced": [(550, "5.1.1", "<user{}@x.example> unknown"), (552, "5.2.2", "mailbox full")],
    "expired": [(451, "4.4.7", "gave up after attempt {}")],
}  # fmt: skip
UNUSUAL_HOURS, UNUSUAL_DOMAIN = (50, 61), "outlook.com"  # half of its mail is deferred
KINDS = ["delivered"] * 85 + ["deferred"] * 10 + ["bounced"] * 4 + ["expired"]


def record(rng: random.Random, node: str, seq: int) -> dict[str, Any]:
    """One event; one in fifty is no attempt."""
    time_ms = HOUR_BEGINS_MS + rng.randrange(72 * HOUR_MS)
    common = {
        "node": node,
        "seq": seq,
        "position": rng.randrange(3),
        "time_ms": time_ms,
        "message": f"{seq:024x}",
    }
    if rng.random() < 0.02:
        return {
            **common,
            "event": "accepted",
            "recipients": [{"index": 0, "recipient": "r@x.example", "zone": "z"}],
        }
    event = rng.choice(KINDS)
    domain = DOMAINS[min(int(rng.expovariate(1 / 40)), len(DOMAINS) - 1)]
    hour = (time_ms - HOUR_BEGINS_MS) // HOUR_MS
    if domain == UNUSUAL_DOMAIN and hour in UNUSUAL_HOURS and rng.random() < 0.5:
        event = "deferred"
    code, status, text = (250, "2.0.0", "Ok {}") if event == "delivered" else rng.choice(REPLIES[event])
    return {
        **common, "event": event, "index": 0, "recipient": f"u{seq}@{domain}", "zone": f"z{seq % 3}", "domain": domain,
        "sender": "s@example.com", "submitter": "u", "tenant": rng.choice(["", "acme"]), "campaign": rng.choice(["", "june", "july"]),
        "tags": rng.choice([[], ["sale"], ["sale", "shoes"]]), "attempt": 1, "created_ms": time_ms - int(rng.expovariate(1e-5)),
        "phase": "dot", "code": code, "status": status, "reply": text.format(rng.randrange(10_000)), "mx": "m", "mx_ip": "192.0.2.1",
        "source_ip": f"203.0.113.{seq % 4}", "tls": True, "duration_ms": 7,
        "provider": rng.choice(["", "google", f"mx.{domain}"]) if domain.endswith(".example") else "",
    }  # fmt: skip


def write_log(directory: Path) -> list[bytes]:
    """Segments by the relay's own writer; returns the lines that can be read, each once."""
    rng = random.Random(5)
    readable: list[bytes] = []
    for node in NODES:
        for number, first in enumerate(range(1, RECORDS // len(NODES), SEGMENT)):
            frames = [
                [(seq, to_json(record(rng, node, seq)) + b"\n") for seq in range(start, start + FRAME)]
                for start in range(first, first + SEGMENT, FRAME)
            ]
            sealed_ms = (
                HOUR_BEGINS_MS + 72 * HOUR_MS + (number % 4 == 3) * 240 * HOUR_MS
            )  # some come late
            path = write_frames(directory, node, frames, sealed_ms)
            lost = _damage(path, number)
            readable += [line for n, frame in enumerate(frames) if n not in lost for _, line in frame]
            if number == 2:  # again, with two other borders
                again = [frames[1][-REPEATS // 4 :], frames[2][: REPEATS // 4]]
                write_frames(directory / "again", node, again, sealed_ms)
                _move_into(directory, directory / "again")
    return readable


def write_frames(directory: Path, node: str, frames: list[list[tuple[int, bytes]]], now_ms: int) -> Path:
    first = frames[0][0][0]
    segment = Segment(directory, node, first, first - 1)
    for frame in frames:
        segment.append(b"".join(line for _, line in frame), frame[-1][0])
    path = segment.seal(now_ms)
    assert path is not None
    return path


def _move_into(directory: Path, other: Path) -> None:
    for path in list(other.rglob("*.jsonl.zst")):
        target = directory / path.relative_to(other)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _damage(path: Path, number: int) -> set[int]:
    """Damage the fifth and the sixth segment of a node; returns which frames cannot be read."""
    content = bytearray(path.read_bytes())
    if number == 5:
        del content[-200:]  # the trailer, and the end of the last frame
        path.write_bytes(content)
        return {SEGMENT // FRAME - 1}
    if number == 6:
        content[100] ^= 0xFF
        path.write_bytes(content)
        return {0}
    return set()
