"""Segments of an event log, written by the test."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zonemta_py.core.codec import to_json
from zonemta_py.events.segments import Segment

SUFFIX = ".jsonl.zst"
HOUR_MS = 3_600_000
HOUR_BEGINS_MS = 1_799_978_400_000  # 02:00 UTC
LENGTH = 20  # records of a segment of ``write_log``, in two frames


def delivered(seq: int, **changes: Any) -> dict[str, Any]:
    """A ``delivered`` event."""
    return {
        "node": "abcdef", "seq": seq, "position": 0, "event": "delivered", "time_ms": 1_800_000_000_000 + seq,
        "message": f"{seq:024x}", "index": 0, "recipient": f"r{seq}@x.example", "zone": "default",
        "domain": "x.example", "sender": "s@example.com", "submitter": "u", "attempt": 1,
        "created_ms": 1_800_000_000_000, "phase": "dot", "code": 250, "status": "2.0.0", "reply": "Ok",
        "mx": "mx.x.example", "mx_ip": "127.0.0.1", "source_ip": "127.0.0.2", "tls": False, "duration_ms": 3,
        **changes,
    }  # fmt: skip


def write_segment(directory: Path, name: str, events: list[dict[str, Any]]) -> Path:
    """A sealed segment of two frames by the relay's own writer, under its name and ``name``."""
    hour_directory = directory / "date=2026-11-21" / "hour=09"
    hour_directory.mkdir(parents=True, exist_ok=True)
    events = sorted(events, key=lambda event: event["seq"])  # as the relay writes them
    with TemporaryDirectory() as elsewhere:
        segment = Segment(Path(elsewhere), "abcdef", events[0]["seq"])
        for part in (events[: len(events) // 2], events[len(events) // 2 :]):
            if part:
                segment.append(b"".join(to_json(each) + b"\n" for each in part), part[-1]["seq"])
        path = segment.seal(HOUR_BEGINS_MS)
        assert path is not None
        return Path(shutil.move(path, hour_directory / f"{path.name[: -len(SUFFIX)]}-{name}{SUFFIX}"))


def write_log(directory: Path, segments: int = 4) -> list[Path]:
    """A chain of sealed segments by the relay's own writer."""
    paths = []
    for first in range(1, segments * LENGTH, LENGTH):
        segment = Segment(directory, "abcdef", first, previous=first - 1)
        for start in (first, first + LENGTH // 2):
            seqs = range(start, start + LENGTH // 2)
            segment.append(b"".join(to_json(delivered(seq)) + b"\n" for seq in seqs), seqs[-1])
        path = segment.seal(HOUR_BEGINS_MS)
        assert path is not None
        paths.append(path)
    return paths


def accepted(seq: int, recipients: list[str], **changes: Any) -> dict[str, Any]:
    """An ``accepted`` event."""
    return {
        "node": "abcdef", "seq": seq, "position": 0, "event": "accepted", "time_ms": 1_800_000_000_000,
        "message": f"{seq:024x}", "sender": "s@example.com",
        "recipients": [{"index": n, "recipient": r, "zone": "default"} for n, r in enumerate(recipients)],
        **changes,
    }  # fmt: skip
