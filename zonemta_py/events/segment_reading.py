"""Reads the segments of the event log: whole ones, damaged ones as far as that is possible, and open ones."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core.codec import Struct, from_json, lines_decoder
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.schema import number_before
from zonemta_py.events.segments import (
    MAGIC,
    Data,
    Frame,
    SegmentName,
    Trailer,
    digest_of,
    has_checksum,
    opened_data,
    read_frames,
    read_name,
    read_torn_frame,
    split_trailer,
)


class Run(NamedTuple):
    """Whole frames one behind the other, bytes ``start`` to ``end``, with the trailer of a segment that has only them."""

    start: int
    end: int
    trailer: Trailer


def runs_of(data: Data, path: Path | str, name: SegmentName) -> Iterator[Run]:
    """The readable parts of a segment, a run for each part in which no number is missing.

    ``previous`` of a run is higher than the last number of the one before it: so the gap stays known when they are segments.
    """
    run: Run | None = None
    for frame in whole_frames(data, path):
        records = frame.lines.count(b"\n")
        if run is None:
            lost = name.first if frame.start else 0
            known = max(name.previous, min(lost, frame.first - 1))
        else:
            done = run.trailer
            is_next = frame.start == run.end
            known = done.last if is_next else max(done.last, min(done.last + 1, frame.first - 1))
            if is_next and number_before(frame.first, known) == known:
                last = max(done.last, frame.last)
                run = Run(run.start, frame.end, done._replace(records=done.records + records, last=last))
                continue
            yield run
        previous = number_before(frame.first, known) if known or run is not None else 0
        run = Run(frame.start, frame.end, Trailer(records, previous, frame.first, frame.last))
    if run is not None:
        yield run


class _Place(Struct, frozen=True):
    """The fields that every event has: enough to know that a line is an event."""

    seq: int
    position: int


_places_in = lines_decoder(_Place)


def read_trailer(path: Path) -> Trailer:
    """The trailer of a sealed segment, computed if an earlier version sealed it. Raises SegmentDamaged, OSError."""
    with opened_data(path) as data:
        _, trailer = split_trailer(data)
        if trailer is None:
            _check_end(data, path)
            trailer = trailer_of(data, path)
    return trailer


def readable_parts(path: Path) -> Iterator[Trailer]:
    """The trailer of a segment; of a damaged one a trailer for each run, see ``runs_of``. Raises OSError."""
    try:
        yield read_trailer(path)
        return
    except SegmentDamaged:
        pass
    with opened_data(path) as data:
        yield from (run.trailer for run in runs_of(data, path, read_name(path)))


@contextmanager
def opened_unsealed(directory: Path, node: str = "") -> Iterator[list[tuple[Path, Data]]]:
    """The unsealed segments, of one ``node`` if given. One that is sealed meanwhile can be read to the end."""
    with ExitStack() as stack:
        found: list[tuple[Path, Data]] = []
        for path in by_number(list(directory.glob(f".{f'{node}-' if node else ''}*.open"))):
            with suppress(FileNotFoundError):  # sealed just now
                found.append((path, stack.enter_context(opened_data(path))))
        yield found


def trailer_of(data: Data, path: Path | str) -> Trailer:
    """The trailer for frames without one. Raises SegmentDamaged."""
    records, first, last = 0, -1, -1
    for frame in read_frames(data, path, 0, len(data)):
        records += frame.lines.count(b"\n")
        first = frame.first if first < 0 else first
        last = frame.last
    if last < 0:
        raise SegmentDamaged(f"{path}: it is empty", 0)
    return Trailer(records, 0, first, last).sealed(digest_of(data, 0, len(data)))


def read_segment(path: Path) -> Iterator[dict[str, Any]]:
    """The records of one sealed segment. Raises SegmentDamaged after those in front of the damage, OSError."""
    with opened_data(path) as data:
        size_bytes, trailer = split_trailer(data)
        records, last, gap = 0, -1, ""
        for frame in read_frames(data, path, 0, size_bytes):
            for line in frame.lines.splitlines():
                record = _record(line, path, frame.start)
                yield record
                records += 1
                seq = record["seq"]
                if is_gap(last, seq) and not gap:
                    gap = missing(record["node"], last, seq)
                last = max(last, seq)
        if trailer is None and not records:
            raise SegmentDamaged(f"{path}: it is empty", 0)
        if trailer is not None and trailer.records != records:
            raise SegmentDamaged(f"{path}: {records} of {trailer.records} records", size_bytes)
        if trailer is None:
            _check_end(data, path)
        else:
            _check_digest(data, size_bytes, trailer, path)
        if gap:
            raise SegmentDamaged(f"{path}: {gap}", size_bytes)


def is_gap(last: int, seq: int) -> bool:
    """True if events are missing between two numbers in one segment; not if ``last`` is negative: nothing was before.

    Starts of earlier versions sealed what they could read of a damaged segment as one.
    """
    return seq > last + 1 and last >= 0 and number_before(seq, last) > last


def missing(node: str, last: int, first: int) -> str:
    """The words for a gap between two numbers."""
    return f"events between {last:016x} and {first:016x} of node {node} are missing"


def verify_segment(content: bytes, path: Path | str) -> Trailer:
    """The trailer of a sealed segment whose bytes are those that were sealed, and whose lines are events. Raises SegmentDamaged.

    Also for one that was sealed with a gap, which is named then. One that an earlier version sealed, without a trailer, is read
    as a whole.
    """
    size_bytes, trailer = split_trailer(content)
    if trailer is not None:
        _check_digest(content, size_bytes, trailer, path)
    last, gap = -1, ""
    for frame in read_frames(content, path, 0, size_bytes):
        for seq in sorted(_numbers_in(frame, path, has_position=trailer is not None)):
            if is_gap(last, seq) and not gap:
                gap = missing(from_json(frame.lines.partition(b"\n")[0])["node"], last, seq)
            last = max(last, seq)
    if trailer is None:
        _check_end(content, path)
        trailer = trailer_of(content, path)
    if gap:
        raise SegmentDamaged(f"{path}: {gap}", size_bytes)
    return trailer


def _numbers_in(frame: Frame, path: Path | str, *, has_position: bool) -> set[int]:
    """The sequence numbers in a frame. Raises SegmentDamaged for a line that is not an event."""
    if not has_position:
        return {_record(line, path, frame.start)["seq"] for line in frame.lines.splitlines()}
    try:
        found = _places_in(frame.lines)  # it may have been sealed with what is no event
    except ValueError as exc:
        raise SegmentDamaged(
            f"{path}: damaged at byte {frame.start}: a line is no event: {exc}", frame.start
        ) from exc
    if len(found) != frame.lines.count(b"\n"):
        raise SegmentDamaged(f"{path}: damaged at byte {frame.start}: a line is no event", frame.start)
    return {place.seq for place in found}


def _check_end(data: Data, path: Path | str) -> None:
    """Raises SegmentDamaged unless a segment without a trailer ends as those of earlier versions do."""
    if has_checksum(data):
        raise SegmentDamaged(f"{path}: its end is missing", len(data))


def _check_digest(data: Data, size_bytes: int, trailer: Trailer, path: Path | str) -> None:
    if trailer != trailer.sealed(digest_of(data, 0, size_bytes)):
        raise SegmentDamaged(f"{path}: its bytes have another digest than its trailer says", size_bytes)


def _record(line: bytes, path: Path | str, at: int) -> dict[str, Any]:
    try:
        record = from_json(line)
    except ValueError as exc:
        raise SegmentDamaged(f"{path}: damaged at byte {at}: {exc}", at) from exc
    if not isinstance(record, dict) or type(record.get("seq")) is not int:
        raise SegmentDamaged(f"{path}: damaged at byte {at}: a line is no event", at)
    return record


def frames_of(path: Path, problems: list[str]) -> Iterator[bytes]:
    """The lines of every frame of a sealed segment that can be read; damage is added to ``problems``. Raises OSError."""
    with opened_data(path) as data:
        (size_bytes, trailer), at = split_trailer(data), 0
        for frame in whole_frames(data, path):
            if frame.start != at:
                problems.append(f"{path}: damaged at byte {at}")
            at = frame.end
            yield frame.lines
        if at != size_bytes or not at:
            problems.append(f"{path}: damaged at byte {at}")
        elif trailer is None and has_checksum(data):
            problems.append(f"{path}: its end is missing")


def read_open_segments(directory: Path) -> Iterator[dict[str, Any]]:
    """The records of unsealed files; the newest may be missing."""
    with opened_unsealed(directory) as unsealed:
        for path, data in unsealed:
            yield from readable_records(data, path)


def readable_records(data: Data, path: Path) -> Iterator[dict[str, Any]]:
    """The records of every frame that can be read, also behind damage; a line that is not a record is left out."""
    for frame in whole_frames(data, path):
        for line in frame.lines.splitlines():
            with suppress(SegmentDamaged):
                yield _record(line, path, frame.start)


def whole_frames(data: Data, path: Path | str, *, torn: bool = False) -> Iterator[Frame]:
    """Every frame of a file that can be read, also behind damage; with ``torn`` also those with lines that are not events."""
    at, (size_bytes, _) = 0, split_trailer(data)
    while True:
        try:
            for frame in read_frames(data, path, at, size_bytes):
                at = frame.end
                yield frame
            return
        except SegmentDamaged:
            found = read_torn_frame(data, at, size_bytes) if torn else None
            if found is not None:
                at = found.end
                yield found
                continue
            at = data.find(MAGIC, at + 1)
            if at < 0:
                return


def sealed_segments(directory: Path, node: str = "") -> list[Path]:
    """The sealed segments under ``directory``, oldest first by the time of sealing; of one ``node`` if given."""
    return sorted(directory.glob(f"date=*/hour=*/{f'{node}-' if node else ''}*.jsonl.zst"))


def by_number(paths: list[Path]) -> list[Path]:
    """Segments in the order of their numbers: a clock that was wrong has no part in it."""
    return sorted(paths, key=lambda path: (*read_name(path), path.name))


def has_segments(directory: Path) -> bool:
    """True if ``directory`` is an event log that has, or had, any record."""
    return any(directory.glob("date=*")) or any(directory.glob(".*.open"))


def open_segments(directory: Path, node: str) -> list[Path]:
    """The segments of ``node`` with a hidden name, oldest first."""
    return sorted(directory.glob(f".{node}-*.open"))
