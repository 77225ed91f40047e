"""Which sealed segments are removed by ``events.keep``.

A clock that is wrong would make every segment old. So none is removed by age before the log has another one, younger than
``keep``, from which a day has passed, or half of ``keep`` if that is less: a wrong clock has to stay so long.
"""

from collections.abc import Sequence
from pathlib import Path

from zonemta_py.config.units import Keep
from zonemta_py.events.index import NAME
from zonemta_py.events.segment_reading import sealed_segments

TRUST_S = 86_400.0  # a clock that is wrong for a shorter time removes nothing


def removable(segments: Sequence[tuple[Path, float, int]], keep: Keep, now_s: float) -> list[Path]:
    """The segments beyond ``keep``, oldest first; the newest stays, for it has the last sequence number.

    ``segments``: path, time of sealing (unix s) and size in bytes, oldest first.
    """
    total = sum(size for _, _, size in segments)
    removed: list[Path] = []
    by_age = keep.age_s is not None and is_trusted(segments, keep.age_s, now_s)
    for path, sealed_s, size in segments[:-1]:
        old = by_age and keep.age_s is not None and now_s - sealed_s > keep.age_s
        if not old and (keep.size_bytes is None or total <= keep.size_bytes):
            break
        removed.append(path)
        total -= size
    return removed


def is_trusted(segments: Sequence[tuple[Path, float, int]], age_s: float, now_s: float) -> bool:
    """Whether the log shows that the clock says the time for a while."""
    trust_s = min(TRUST_S, age_s / 2)
    return any(trust_s <= now_s - sealed_s <= age_s for _, sealed_s, _ in segments)


def remove_old(directory: Path, node: str, keep: Keep, needed_s: float, now_s: float) -> int:
    """Remove segments of ``node`` beyond ``keep``; returns how many. Raises OSError.

    One that was sealed at ``needed_s`` or later stays, with all after it: it may have the acceptance of a
    message that is still queued.
    """
    segments = []
    for path in sealed_segments(directory, node):
        stat = path.stat()
        segments.append((path, stat.st_mtime, stat.st_size))
    sealed_s = {path: at_s for path, at_s, _ in segments}
    count = 0
    for path in removable(segments, keep, now_s):
        if sealed_s[path] >= needed_s:
            break
        path.unlink()
        count += 1
        for parent in (path.parent, path.parent.parent):  # hour, date
            if [each.name for each in parent.iterdir()] == [NAME]:
                (parent / NAME).unlink()
            if any(parent.iterdir()):
                break
            parent.rmdir()
    return count
