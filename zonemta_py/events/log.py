"""The whole event log, with what is damaged or missing in it.

The sequence numbers of a node in its segments form a chain: each segment names the number before its first.
A segment of an earlier version has no trailer; its first number follows the last one of the same boot.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.schema import boot_of, first_seq
from zonemta_py.events.segment_reading import (
    open_parts,
    read_open_segments,
    read_segment,
    readable_parts,
    sealed_segments,
)
from zonemta_py.events.segments import Trailer


def read_log(
    directory: Path, problems: list[str], since_day: date | None = None
) -> Iterator[dict[str, Any]]:
    """All records that can be read; damage is added to ``problems``, a text for each file.

    Those that are sealed during the call may be returned twice. ``since_day`` (UTC) leaves out segments that were sealed
    before it.
    """
    first = f"date={since_day}" if since_day is not None else ""
    hidden = list(read_open_segments(directory))
    for path in sealed_segments(directory):
        if path.parent.parent.name < first:
            continue
        try:
            yield from read_segment(path)
        except SegmentDamaged as exc:
            problems.append(str(exc))
    yield from hidden


def gaps(directory: Path, exported: Mapping[str, int]) -> Iterator[str]:
    """A text for each place where segments are missing; those that are not sealed yet are not.

    ``exported``: the highest sequence number that was written, by node, as the queue knows it. Segments
    that are missing before the oldest of a node were removed on purpose.
    """
    found: defaultdict[str, list[tuple[Trailer, Path]]] = defaultdict(list)
    for path in sorted(directory.glob(".*.open")):
        found[path.name[1:].partition("-")[0]] += ((each, path) for each in open_parts(path))
    for path in sealed_segments(directory):
        found[path.name.partition("-")[0]] += ((each, path) for each in readable_parts(path))
    for node, segments in sorted(found.items()):
        if not segments:
            continue
        yield from missing_between(node, segments)
        last = max(trailer.last for trailer, _ in segments)
        if exported.get(node, 0) > last:
            yield (
                f"{directory}: the log of node {node} ends at {last:016x}, and events were written up to "
                f"{exported[node]:016x}"
            )


def missing_between(node: str, segments: Iterable[tuple[Trailer, Path | str]]) -> Iterator[str]:
    """A text for each place where segments of ``node`` are missing between others."""
    last = 0
    for trailer, path in sorted(segments, key=lambda one: one[0].first):
        expected = trailer.previous or _before(trailer.first, last)
        if last and expected > last:
            yield f"{path}: events between {last:016x} and {trailer.first:016x} of node {node} are missing"
        last = max(last, trailer.last)


def _before(first: int, last: int) -> int:
    """The number that must precede ``first``: ``last`` at the beginning of a boot, whose predecessor is unknown."""
    return last if first == first_seq(boot_of(first)) else first - 1
