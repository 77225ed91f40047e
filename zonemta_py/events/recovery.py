"""Recovery of unsealed segments after a crash, and where the event log ends."""

import logging
from pathlib import Path

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.files import sync_directory
from zonemta_py.events.segment_reading import (
    open_segments,
    read_segment,
    read_trailer,
    readable_parts,
    readable_records,
    sealed_segments,
    trailer_of,
    whole_frames,
)
from zonemta_py.events.segments import final_name, publish, write_synced

NEWEST = 3  # segments, by name, that may hold the highest sequence number: one may be sealed late

log = logging.getLogger(__name__)


def recover(directory: Path, node: str) -> set[int]:
    """Make the unsealed segments whole; returns the sequence numbers in them. Raises OSError.

    A torn end, which a crash leaves, is cut off. Damage with frames behind it is logged, and the file kept
    as ``.damaged``. The segments stay open until ``seal_recovered``. One that was sealed when the crash came
    only loses its hidden name.
    """
    found: set[int] = set()
    for path in open_segments(directory, node):
        data = path.read_bytes()
        frames = list(whole_frames(data, path))
        for frame in frames:
            found.update(from_json(line)["seq"] for line in frame.lines.splitlines())
        if final_name(path) is not None:
            path.unlink()
            continue
        kept = b"".join(data[frame.start : frame.end] for frame in frames)
        if kept != data[: len(kept)]:
            damaged = path.with_suffix(".damaged")
            write_synced(damaged, data)
            log.critical("%s is damaged; it is kept as %s, see zonemta audit", path, damaged)
        if not kept:
            path.unlink()
        elif len(kept) < len(data):
            _replace(path, kept)
    return found


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    write_synced(temporary, data)
    temporary.replace(path)
    sync_directory(path.parent)


def seal_recovered(directory: Path, node: str, now_ms: int) -> None:
    """Seal what ``recover`` left open. The outbox must not hold their events any more. Raises OSError."""
    for path in open_segments(directory, node):
        name = path.name[1 : -len(".open")]
        before = [p for p in sealed_segments(directory, node) if p.name < f"{name}.jsonl.zst"]
        data = path.read_bytes()
        newest = max(
            before, key=lambda p: p.name, default=None
        )  # the last path may be one that was sealed late
        trailer = trailer_of(data, path, 0 if newest is None else _last_of(newest))
        _replace(path, data + trailer.pack())
        publish(directory, path, name, now_ms)


def _last_of(path: Path) -> int:
    """The last number of a sealed segment; 0 when it is damaged."""
    try:
        return read_trailer(path).last
    except SegmentDamaged as exc:
        log.critical("%s", exc)
        return 0


def sealed_seqs(directory: Path, node: str, first: int) -> set[int]:
    """The sequence numbers from ``first`` on in the sealed segments of ``node``, as far as they can be read."""
    found: set[int] = set()
    for path in sealed_segments(directory, node):
        try:
            if read_trailer(path).last >= first:
                found.update(record["seq"] for record in read_segment(path))
        except SegmentDamaged as exc:
            log.critical("%s", exc)
            records = readable_records(path.read_bytes(), path)
            found.update(record["seq"] for record in records if record["seq"] >= first)
    return found


def newest_message(directory: Path, node: str) -> str:
    """The highest message id in the newest segments of ``node`` that have any; empty without one."""
    found, segments = "", 0
    newest_first = sorted(sealed_segments(directory, node), key=lambda path: path.name, reverse=True)
    for path in [*open_segments(directory, node), *newest_first]:
        records = readable_records(path.read_bytes(), path)
        ids = [record["message"] for record in records if record["event"] == "accepted"]
        found, segments = max([found, *ids]), segments + bool(ids)
        if segments == NEWEST:
            break
    return found


def last_seq(directory: Path, node: str) -> int:
    """The highest sequence number of ``node`` in the event log, or 0. Damaged files count as far as they can be read."""
    last = 0
    for path in open_segments(directory, node):
        last = max([last, *(frame.last for frame in whole_frames(path.read_bytes(), path))])
    named = sorted(sealed_segments(directory, node), key=lambda path: path.name)
    for path in named[-NEWEST:]:
        first = int(path.name.partition(".")[0].split("-")[1], 16)
        last = max([last, first, *(part.last for part in readable_parts(path))])
    return last
