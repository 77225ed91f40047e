"""Reads the segments of the event log: whole ones, damaged ones as far as that is possible, and open ones."""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zonemta_py.core.codec import Struct, from_json, lines_decoder
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.frames import MAGIC, Frame, has_checksum, read_frames, read_torn_frame
from zonemta_py.events.segments import TRAILER_BYTES, Trailer, split_trailer


class _Place(Struct, frozen=True):
    """What every event has: it is enough to know that a line is one."""

    seq: int
    position: int


_places_in = lines_decoder(_Place)


def read_trailer(path: Path) -> Trailer:
    """The trailer of a sealed segment, computed if an earlier version sealed it. Raises SegmentDamaged."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TRAILER_BYTES))
        _, trailer = split_trailer(file.read())
    if trailer is None:
        data = path.read_bytes()
        _check_end(data, path)
        trailer = trailer_of(data, path, 0)
    return trailer


def readable_parts(path: Path) -> Iterator[Trailer]:
    """The trailer of a segment; of a damaged one, a trailer for each row of whole frames: what can be read of it."""
    try:
        yield read_trailer(path)
    except SegmentDamaged:
        yield from _rows(path.read_bytes(), path)


def open_parts(path: Path) -> Iterator[Trailer]:
    """As ``readable_parts``, of an unsealed segment; nothing when it is sealed meanwhile."""
    with suppress(FileNotFoundError):
        yield from _rows(path.read_bytes(), path)


def _rows(data: bytes, path: Path) -> Iterator[Trailer]:
    first = last = end = -1
    for frame in whole_frames(data, path):
        if frame.start != end:
            if end >= 0:
                yield Trailer(0, 0, first, last)
            first = frame.first
        last, end = frame.last, frame.end
    if end >= 0:
        yield Trailer(0, 0, first, last)


def trailer_of(data: bytes, path: Path | str, previous: int) -> Trailer:
    """The trailer for the frames ``data``. Raises SegmentDamaged."""
    frames = list(read_frames(data, path))
    if not frames:
        raise SegmentDamaged(f"{path}: it is empty", 0)
    records = sum(frame.lines.count(b"\n") for frame in frames)
    trailer = Trailer(records, previous, frames[0].first, frames[-1].last)
    return trailer.sealed(hashlib.sha256(data))


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one sealed segment. Raises SegmentDamaged after those in front of the damage."""
    data, trailer = split_trailer(path.read_bytes())
    records = 0
    for frame in read_frames(data, path):
        for line in frame.lines.splitlines():
            yield _record(line, path, frame.start)
            records += 1
    if trailer is None and not records:
        raise SegmentDamaged(f"{path}: it is empty", 0)
    if trailer is not None and trailer.records != records:
        raise SegmentDamaged(f"{path}: {records} of {trailer.records} records", len(data))
    if trailer is None:
        _check_end(data, path)
    else:
        _check_digest(data, trailer, path)


def verify_segment(content: bytes, path: Path | str) -> Trailer:
    """The trailer of a sealed segment whose bytes are those that were sealed, and whose lines are events. Raises SegmentDamaged.

    One that an earlier version sealed, without a trailer, is read as a whole instead.
    """
    data, trailer = split_trailer(content)
    if trailer is not None:
        _check_digest(data, trailer, path)
        for frame in read_frames(data, path):  # it may have been sealed with what is no event
            _check_lines(frame, path)
        return trailer
    for frame in read_frames(data, path):
        for line in frame.lines.splitlines():
            _record(line, path, frame.start)
    _check_end(data, path)
    return trailer_of(data, path, 0)


def _check_lines(frame: Frame, path: Path | str) -> None:
    try:
        found = len(_places_in(frame.lines))
    except ValueError as exc:
        raise SegmentDamaged(
            f"{path}: damaged at byte {frame.start}: a line is no event: {exc}", frame.start
        ) from exc
    if found != frame.lines.count(b"\n"):
        raise SegmentDamaged(f"{path}: damaged at byte {frame.start}: a line is no event", frame.start)


def _check_end(data: bytes, path: Path | str) -> None:
    """A segment without a trailer is of an earlier version, or was cut behind a frame: what followed is not known."""
    if has_checksum(data):
        raise SegmentDamaged(f"{path}: its end is missing", len(data))


def _check_digest(data: bytes, trailer: Trailer, path: Path | str) -> None:
    if trailer != trailer.sealed(hashlib.sha256(data)):
        raise SegmentDamaged(f"{path}: its bytes have another digest than its trailer says", len(data))


def _record(line: bytes, path: Path | str, at: int) -> dict[str, Any]:
    try:
        record = from_json(line)
    except ValueError as exc:
        raise SegmentDamaged(f"{path}: damaged at byte {at}: {exc}", at) from exc
    if not isinstance(record, dict):
        raise SegmentDamaged(f"{path}: damaged at byte {at}: a line is no event", at)
    return record


def frames_of(path: Path) -> bytes:
    """The frames of a sealed segment, without its trailer; nothing is verified."""
    return split_trailer(path.read_bytes())[0]


def open_frames(directory: Path) -> Iterator[bytes]:
    """The lines of every frame of unsealed files; the newest may be missing."""
    for path in sorted(directory.glob(".*.open")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # sealed meanwhile
        for frame in whole_frames(data, path):
            yield frame.lines


def read_open_segments(directory: Path) -> Iterator[dict[str, Any]]:
    """The records of unsealed files; the newest may be missing."""
    for path in sorted(directory.glob(".*.open")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue  # sealed meanwhile
        yield from readable_records(data, path)


def readable_records(data: bytes, path: Path) -> Iterator[dict[str, Any]]:
    """The records of every frame that can be read, also behind damage."""
    for frame in whole_frames(data, path):
        yield from map(from_json, frame.lines.splitlines())


def whole_frames(data: bytes, path: Path | str, *, torn: bool = False) -> Iterator[Frame]:
    """Every frame of an unsealed file that can be read, also behind damage; with ``torn`` also those with lines that are no events."""
    at = 0
    data = split_trailer(data)[0]
    while True:
        try:
            for frame in read_frames(data, path, at):
                at = frame.end
                yield frame
            return
        except SegmentDamaged:
            found = read_torn_frame(data, at) if torn else None
            if found is not None:
                at = found.end
                yield found
                continue
            at = data.find(MAGIC, at + 1)
            if at < 0:
                return


def sealed_segments(directory: Path, node: str = "") -> list[Path]:
    """The sealed segments under ``directory``, oldest first; of one ``node`` if given."""
    return sorted(directory.glob(f"date=*/hour=*/{f'{node}-' if node else ''}*.jsonl.zst"))


def has_segments(directory: Path) -> bool:
    """Whether ``directory`` is an event log that has, or had, any record."""
    return any(directory.glob("date=*")) or any(directory.glob(".*.open"))


def open_segments(directory: Path, node: str) -> list[Path]:
    """The segments of ``node`` with a hidden name, oldest first."""
    return sorted(directory.glob(f".{node}-*.open"))
