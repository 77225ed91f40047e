"""Recovery of unsealed segments after a crash, and where the event log ends.

Steps of a start::

    hidden files ─ recover ─▶ complete, with trailers ─ outbox deletes what they have ─ seal_recovered ─▶ sealed

Invariants:

- A start makes nothing valid that was not: of a damaged segment each run of whole frames becomes a segment, and the trailers say
  which numbers are missing between them. The damaged file is kept as ``.damaged``.
- A torn end is cut off without a notice only if the queue does not know of events in it (``exported``): a crash tears only what was
  not yet acknowledged to the queue.
- Segments stay open until the outbox has deleted their events: a crash in between repeats the recovery, and no event is lost.
- Every step can be repeated; a file that was published when the crash came only loses its hidden name.
- Files are read frame by frame: memory does not depend on their size.

Callers: the outbox at its start (``recover``, ``seal_recovered``, ``last_seq``, ``sealed_seqs``); ``log`` for the ends of a log;
the opening of a queue for ``newest_message``, so that no message id is used twice.

Example: a power cut leaves ``.a1-…07-…06.open`` with the whole frames 7 to 9 and half of frame 10. ``recover`` cuts the half off,
writes the trailer 7-9, and returns {7, 8, 9}; group 10 is still in the outbox, and is exported again.
"""

import logging
from contextlib import suppress
from itertools import chain
from pathlib import Path

from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.core.files import sync_directory
from zonemta_py.events.segment_reading import (
    by_number,
    open_segments,
    read_trailer,
    readable_parts,
    readable_records,
    runs_of,
    sealed_segments,
    whole_frames,
)
from zonemta_py.events.segments import (
    Data,
    SegmentName,
    add_trailer,
    blocks,
    digest_of,
    final_name,
    opened_data,
    publish,
    read_name,
    split_trailer,
    write_synced,
)

NEWEST = 3  # segments, by number, that may hold the highest sequence number: one may be sealed late

log = logging.getLogger(__name__)


def recover(directory: Path, node: str, exported: int = 0) -> set[int]:
    """Complete the unsealed segments with their trailers; returns the sequence numbers in them. Raises OSError.

    A torn end, which a crash leaves, is cut off, unless the log had more: ``exported``, the highest number that the
    queue knows to be in it. Damage is logged, and the file kept as ``.damaged``. The segments stay open until ``seal_recovered``. One
    that was sealed when the crash came only loses its hidden name.
    """
    found: set[int] = set()
    paths = by_number(open_segments(directory, node))
    for path in paths:
        with opened_data(path) as data:
            found.update(record["seq"] for record in readable_records(data, path))
            if (sealed := final_name(path)) is not None:
                sync_directory(sealed.parent)
                path.unlink()
                continue
            size_bytes, trailer = split_trailer(data)
            if trailer is not None and trailer == trailer.sealed(digest_of(data, 0, size_bytes)):
                add_trailer(path, size_bytes, trailer)  # again: its first write may not be on disk
            else:
                last = max(max(found, default=0), read_name(path).previous)
                _complete(path, data, path == paths[-1] and last < exported)
    return found


def _complete(path: Path, data: Data, is_cut: bool) -> None:
    """Make complete segments of an unsealed one, one for each of its runs. ``is_cut``: the log had more than its end."""
    name, runs = read_name(path), list(runs_of(data, path, read_name(path)))
    is_torn = (runs[-1].end if runs else 0) < split_trailer(data)[0]
    if len(runs) <= 1 and not (runs and runs[0].start) and not (is_torn and is_cut):
        if runs:
            add_trailer(path, runs[0].end, runs[0].trailer.sealed(digest_of(data, 0, runs[0].end)))
        else:
            path.unlink()
        return
    damaged = path.with_suffix(".damaged")
    with suppress(FileExistsError):  # of a start that was interrupted here
        damaged.hardlink_to(path)
    log.critical("%s is damaged; it is kept as %s, see zonemta audit", path, damaged)
    made = []
    for run in reversed(runs):  # the first may have the name of ``path``
        made.append(
            path.with_name(SegmentName(name.node, run.trailer.first, run.trailer.previous).hidden())
        )
        trailer = run.trailer.sealed(digest_of(data, run.start, run.end))
        write_synced(made[-1], chain(blocks(data, run.start, run.end), [trailer.pack()]))
    if path not in made:
        path.unlink()
    sync_directory(path.parent)


def seal_recovered(directory: Path, node: str, now_ms: int) -> None:
    """Seal what ``recover`` left open. The outbox must not hold their events any more. Raises OSError."""
    for path in by_number(open_segments(directory, node)):
        publish(directory, path, read_name(path), now_ms)


def sealed_seqs(directory: Path, node: str, first: int) -> set[int]:
    """The sequence numbers from ``first`` on in the sealed segments of ``node``, as far as they can be read."""
    found: set[int] = set()
    for path in sealed_segments(directory, node):
        try:
            if read_trailer(path).last < first:
                continue
        except SegmentDamaged as exc:
            log.critical("%s", exc)
        with opened_data(path) as data:
            records = readable_records(data, path)
            found.update(record["seq"] for record in records if record["seq"] >= first)
    return found


def newest_message(directory: Path, node: str) -> str:
    """The highest message id in the newest segments of ``node`` that have any; empty without one."""
    found, segments = "", 0
    newest_first = by_number(sealed_segments(directory, node))[::-1]
    for path in [*open_segments(directory, node), *newest_first]:
        with opened_data(path) as data:
            records = readable_records(data, path)
            newest = max(
                (record["message"] for record in records if record["event"] == "accepted"), default=""
            )
        found, segments = max(found, newest), segments + bool(newest)
        if segments == NEWEST:
            break
    return found


def last_seq(directory: Path, node: str) -> int:
    """The highest sequence number of ``node`` in the event log, or 0. Damaged files count as far as they can be read."""
    last = 0
    for path in open_segments(directory, node):
        with opened_data(path) as data:
            last = max([last, *(frame.last for frame in whole_frames(data, path))])
    for path in by_number(sealed_segments(directory, node))[-NEWEST:]:
        last = max([last, read_name(path).first, *(part.last for part in readable_parts(path))])
    return last
