"""The whole event log of a directory: its extent, the removal of old segments, and what is damaged or missing in it.

The sequence numbers of a node in its segments form a chain: each segment names the number before its first. A segment of an
earlier version has no trailer; its first number follows the last one of the same boot. ``schema.number_before`` is the only rule.

What a log must have is written in ``DIRECTORY/.NODE.range``: AFTER LAST CRC-32, each in hex. The log has every number behind
AFTER, up to LAST at least.

Life of a segment here: sealed ─▶ old by ``events.keep``, and not needed by the audit ─▶ extent moved ─▶ removed.

Invariants:

- The extent is written before segments are removed, and after each that is sealed. So a number that is missing at either end was
  removed by another program, not by the relay.
- Segments are removed in the order of their numbers, and the newest stays: it has the last number.
- None is removed by age while the clock is not trusted: the log must have a segment younger than ``keep`` from which a day has
  passed, or half of ``keep`` if that is less.
- Reads never change the log. A segment that is sealed during a read may be read twice, never missed.

Callers: the outbox (``remove_old``, ``write_extent``), the commands that audit and repair a queue (``read_log``, ``gaps``),
``history`` (``gaps`` by the numbers in the index), and the pipeline (``missing_of``).

Example: of the numbers of one boot a node has the segments 1-40 and 57-90. ``gaps`` yields one text: 41 to 56 are missing in front
of the second segment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.config.values import Keep
from zonemta_py.core.codec import crc32
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.files import private_directory
from zonemta_py.events.index import NAME, hash_of, may_have, read_index
from zonemta_py.events.recovery import last_seq
from zonemta_py.events.schema import boot_of, first_seq, number_before
from zonemta_py.events.segment_reading import (
    by_number,
    missing,
    opened_unsealed,
    read_segment,
    readable_parts,
    readable_records,
    runs_of,
    sealed_segments,
    whole_frames,
)
from zonemta_py.events.segments import Trailer, opened_data, read_name, write_synced

# ---- The extent of the log of a node, and the removal of sealed segments by ``events.keep``.
#
# A log of an earlier version has no ``.range`` until a relay starts on it, which takes the log as it is. A clock that is wrong would
# make every segment old, so it has to stay wrong for TRUST_S, or half of ``keep``, before anything is removed by age.

TRUST_S = 86_400.0  # a clock that is wrong for a shorter time removes nothing
SUFFIX = ".range"


class Extent(NamedTuple):
    """The log has every number behind ``after``, up to ``last`` at least."""

    after: int
    last: int


def extents(directory: Path) -> dict[str, Extent]:
    """The extent of each node's log, where it is known."""
    found = {path: _read_extent(path) for path in directory.glob(f".*{SUFFIX}")}
    return {path.name[1 : -len(SUFFIX)]: extent for path, extent in found.items() if extent is not None}


def read_extent(directory: Path, node: str) -> Extent | None:
    """The extent of the log of ``node``; None where it is not known."""
    return _read_extent(directory / f".{node}{SUFFIX}")


def _read_extent(path: Path) -> Extent | None:
    with suppress(OSError, ValueError):
        *numbers, checksum = path.read_text().split()
        if crc32(" ".join(numbers).encode()) == int(checksum, 16):
            return Extent(*(int(number, 16) for number in numbers))
    return None


def write_extent(directory: Path, node: str, extent: Extent) -> None:
    """Write the extent of the log of ``node``. Raises OSError."""
    numbers = " ".join(f"{number:016x}" for number in extent)
    line = f"{numbers} {crc32(numbers.encode()):08x}\n"
    private_directory(directory)
    write_synced(directory / f".{node}{SUFFIX}", [line.encode()])


def beginning(directory: Path, node: str) -> int | None:
    """The number in front of the oldest segment of ``node``; None without one."""
    for path in by_number(sealed_segments(directory, node)):
        for part in readable_parts(path):
            return number_before(part.first, part.previous)
    return None


class Sealed(NamedTuple):
    """A segment: when it was sealed (unix s), and its size."""

    path: Path
    sealed_s: float
    size_bytes: int


def removable(segments: Sequence[Sealed], keep: Keep, now_s: float) -> list[Path]:
    """The segments beyond ``keep``, of ``segments`` in the order of their numbers; the newest stays, for it has the last number.

    None was sealed later than one behind it, whatever the clock said.
    """
    total = sum(each.size_bytes for each in segments)
    removed: list[Path] = []
    by_age = keep.age_s is not None and is_trusted(segments, keep.age_s, now_s)
    times = list(accumulate((each.sealed_s for each in reversed(segments)), min))[::-1]
    for each, sealed_s in zip(segments[:-1], times, strict=False):
        old = by_age and keep.age_s is not None and now_s - sealed_s > keep.age_s
        if not old and (keep.size_bytes is None or total <= keep.size_bytes):
            break
        removed.append(each.path)
        total -= each.size_bytes
    return removed


def is_trusted(segments: Sequence[Sealed], age_s: float, now_s: float) -> bool:
    """True if the log shows that the clock has been right for a while."""
    trust_s = min(TRUST_S, age_s / 2)
    return any(trust_s <= now_s - each.sealed_s <= age_s for each in segments)


class Needed(NamedTuple):
    """The part of the log that the audit of the queue needs: all that was sealed at ``since_s`` or later, and from the acceptance of ``message`` on."""

    since_s: float
    message: str


def remove_old(directory: Path, node: str, keep: Keep, needed: Needed, now_s: float) -> int:
    """Remove segments of ``node`` beyond ``keep``, but none that is ``needed``; returns how many. Raises OSError."""
    segments = []
    for path in by_number(sealed_segments(directory, node)):
        stat = path.stat()
        segments.append(Sealed(path, stat.st_mtime, stat.st_size))
    sealed_s = {each.path: each.sealed_s for each in segments}
    removed: list[Path] = []
    for path in removable(segments, keep, now_s):
        if sealed_s[path] >= needed.since_s or (needed.message and _may_have(path, needed.message)):
            break
        removed.append(path)
    if removed:
        after = max(_last_of(path) for path in removed)
        before = read_extent(directory, node) or Extent(0, 0)
        write_extent(directory, node, Extent(max(after, before.after), max(after, before.last)))
    for path in removed:
        _remove(path)
    return len(removed)


def _last_of(path: Path) -> int:
    return max([read_name(path).first, *(part.last for part in readable_parts(path))])


def _may_have(path: Path, message: str) -> bool:
    """True if the segment may have an event of ``message``."""
    key = message.encode()
    for entry in read_index(path.parent):
        if entry.name == path.name:
            return may_have(entry.bits, hash_of(key))
    with opened_data(path) as data:
        return any(key in frame.lines for frame in whole_frames(data, path))


def _remove(path: Path) -> None:
    path.unlink()
    for parent in (path.parent, path.parent.parent):  # hour, date
        if [each.name for each in parent.iterdir()] == [NAME]:
            (parent / NAME).unlink()
        if any(parent.iterdir()):
            break
        parent.rmdir()


# ---- Reading, and gaps.

UNKNOWN = -1  # where a log begins
IMPORTED = "; none is missing if an earlier version imported the queue of this node: see docs/operations.md, Back up"

Each = Callable[[list[Path]], Iterator[Path]]
Parts = Callable[[Path], Iterator[Trailer]]
Found = defaultdict[str, list[tuple[Trailer, Path]]]  # by node


def read_log(
    directory: Path, problems: list[str], since_day: date | None = None, each: Each = iter
) -> Iterator[dict[str, Any]]:
    """All records that can be read; damage is added to ``problems``, a text for each file.

    Those that are sealed during the call may be returned twice. ``since_day`` (UTC) leaves out segments that were sealed
    before it. ``each`` passes the segments on as they are read.
    """
    first = f"date={since_day}" if since_day is not None else ""
    with opened_unsealed(directory) as unsealed:
        sealed = [path for path in sealed_segments(directory) if path.parent.parent.name >= first]
        for path in each(sealed):
            try:
                yield from read_segment(path)
            except SegmentDamaged as exc:
                problems.append(str(exc))
        for path, data in unsealed:
            yield from readable_records(data, path)


def ends_of(directory: Path) -> dict[str, int]:
    """The highest sequence number of each node in the log."""
    paths = [*directory.glob(".*.open"), *sealed_segments(directory)]
    return {node: last_seq(directory, node) for node in {read_name(path).node for path in paths}}


def gaps(
    directory: Path, exported: Mapping[str, int], first_hour: str = "", parts_of: Parts = readable_parts,
    others: Sequence[Path] = (),
) -> Iterator[str]:  # fmt: skip
    """A text for each place where events are missing: between segments, and at both ends of the log.

    ``exported``: the highest sequence number that was written, by node, as the queue knows it. What was removed by
    ``events.keep`` is not missing, nor what was removed before the log had a ``.range``. ``first_hour``
    (``date=…/hour=…``) leaves out what is older. ``parts_of`` returns the trailers of a segment. ``others``: directories
    with other parts of the log.
    """
    directories = [directory, *others]
    ends = _merged(
        max, ({n: e.last for n, e in extents(each).items()} for each in directories)
    )  # first: all grow
    found: Found = defaultdict(list)
    older: set[str] = set()
    for each in directories:
        older |= _add_parts(found, each, first_hour, parts_of)
    begins = _merged(min, ({n: e.after for n, e in extents(each).items()} for each in directories))
    for node in sorted({*found, *exported, *ends}):
        after = UNKNOWN if node in older else begins.get(node, UNKNOWN)
        must = Extent(after, max(exported.get(node, 0), ends.get(node, 0)))
        yield from missing_of(node, found[node], must, directory)


def _merged(choose: Callable[[int, int], int], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for part in parts:
        for node, number in part.items():
            merged[node] = choose(merged.get(node, number), number)
    return merged


def _add_parts(found: Found, directory: Path, first_hour: str, parts_of: Parts) -> set[str]:
    """Add the trailers of all segments in one directory; returns the nodes of which older ones were left out.

    Not the newest sealed one of a node: the log ends with it.
    """
    with opened_unsealed(directory) as unsealed:
        for path, data in unsealed:
            name = read_name(path)
            found[name.node] += ((run.trailer, path) for run in runs_of(data, path, name))
    begun: set[str] = set()
    older: set[str] = set()
    paths = by_number(sealed_segments(directory))
    newest = {read_name(path).node: path for path in paths}
    for path in paths:
        node = read_name(path).node
        if node not in begun and str(path.parent.relative_to(directory)) < first_hour:
            older.add(node)
            if path != newest[node]:
                continue
        begun.add(node)
        with suppress(FileNotFoundError):  # removed by ``events.keep`` meanwhile
            found[node] += ((each, path) for each in parts_of(path))
    return older


def missing_of(
    node: str, segments: Iterable[tuple[Trailer, Path | str]], must: Extent, where: Path | str
) -> Iterator[str]:
    """A text for each place in the log ``where`` at which events of ``node`` are missing: in front of a segment, and at the end.

    ``must``: what the log must have; ``after`` UNKNOWN: it begins with the first segment.
    """
    last = must.after
    for trailer, path in sorted(segments, key=lambda one: one[0].first):
        if last != UNKNOWN and number_before(trailer.first, trailer.previous) > last:
            is_begin = last == 0 and trailer.first == first_seq(boot_of(trailer.first))
            yield f"{path}: {missing(node, last, trailer.first)}{IMPORTED if is_begin else ''}"
        last = max(last, trailer.last)
    if must.last > max(last, 0):
        yield (
            f"{where}: the log of node {node} ends at {max(last, 0):016x}, and events were written up to {must.last:016x}"
            f"{'' if last > 0 else IMPORTED}"
        )
