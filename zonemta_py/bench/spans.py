"""A long run in twelve parts: what each took, so that anything which grows is seen. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from zonemta_py.bench.sampler import Sample

PARTS = 12


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a run, from ``from_s`` on: the most of each figure, and the latencies in it."""

    from_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float
    p50_ms: float
    p99_ms: float


def share(ordered: Sequence[float], part: float) -> float:
    """The value that ``part`` of ``ordered`` does not exceed."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 2)


def spans(samples: Sequence[Sample], waits_ms: Sequence[float], per_second: int) -> tuple[Span, ...]:
    """``waits_ms``: how long each message waited, in the order of submission, ``per_second``."""
    whole_s = len(waits_ms) / per_second
    found = []
    for part in range(PARTS):
        begin_s, end_s = whole_s * part / PARTS, whole_s * (part + 1) / PARTS
        here = [sample for sample in samples if begin_s <= sample.at_s < end_s]
        waited = sorted(waits_ms[int(begin_s * per_second) : int(end_s * per_second)])
        if here and waited:
            found.append(
                Span(
                    round(begin_s, 1),
                    max(sample.rss_anon_mb for sample in here),
                    max(sample.open_files for sample in here),
                    max(sample.queue_mb for sample in here),
                    share(waited, 0.50),
                    share(waited, 0.99),
                )
            )
    return tuple(found)
