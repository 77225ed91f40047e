"""Segments of an event log, written by the test."""

from pathlib import Path
from typing import Any

import zstandard

from zonemta_py.core.codec import to_json


def delivered(seq: int, **changes: Any) -> dict[str, Any]:
    """A record of a delivery."""
    return {
        "node": "abcdef", "seq": seq, "position": 0, "event": "delivered", "time_ms": 1_800_000_000_000 + seq,
        "message": f"{seq:024x}", "index": 0, "recipient": f"r{seq}@x.example", "zone": "default",
        "domain": "x.example", "sender": "s@example.com", "submitter": "u", "attempt": 1,
        "created_ms": 1_800_000_000_000, "phase": "dot", "code": 250, "status": "2.0.0", "reply": "Ok",
        "mx": "mx.x.example", "mx_ip": "127.0.0.1", "source_ip": "127.0.0.2", "tls": False, "duration_ms": 3,
        **changes,
    }  # fmt: skip


def write_segment(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    """A sealed segment, where the relay would put it."""
    place = folder / "date=2026-11-21" / "hour=09"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{name}.jsonl.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(to_json(r) + b"\n" for r in records)))
    return path


def accepted(seq: int, recipients: list[str], **changes: Any) -> dict[str, Any]:
    """A record of a message that was taken."""
    return {
        "node": "abcdef", "seq": seq, "position": 0, "event": "accepted", "time_ms": 1_800_000_000_000,
        "message": f"{seq:024x}", "sender": "s@example.com",
        "recipients": [{"index": n, "recipient": r, "zone": "default"} for n, r in enumerate(recipients)],
        **changes,
    }  # fmt: skip
