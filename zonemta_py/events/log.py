"""The whole event log, with what is damaged or missing in it.

The sequence numbers of a node in its segments form a chain: each segment names the number before its first.
A segment of an earlier version has no trailer; its first number follows the last one of the same boot. ``number_before`` is
the rule for all.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.recovery import last_seq
from zonemta_py.events.retention import Extent, extents
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
)
from zonemta_py.events.segments import Trailer, read_name

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
    ``events.keep`` is not missing, nor what was removed before the log had a ``.range`` (see ``retention``). ``first_hour``
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
