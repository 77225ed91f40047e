"""Memory, files and disk of a running relay, sampled from outside, and a long run cut into twelve parts."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zonemta_py.bench.process import process_tree, rss_anon_bytes

INTERVAL_S = 0.25
PARTS = 12


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, ``at_s`` seconds after the first; ``queue_mb`` is the queue without the event log."""

    at_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float


class Sampler:
    """Samples the process tree of ``pid`` and the queue in ``directory`` in a thread of its own."""

    def __init__(self, pid: int, directory: Path) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._queue = directory / "queue"
        self._stopped = threading.Event()
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.samples.append(self._sample())
            self._stopped.wait(INTERVAL_S)

    def _sample(self) -> Sample:
        return Sample(
            round(time.monotonic() - self._began_s, 2),
            round(rss_anon_bytes(self._pid) / 1e6, 1),
            sum(map(_open_files, process_tree(self._pid))),
            round(_size_bytes(self._queue) / 1e6, 1),
        )

    def stop(self) -> list[Sample]:
        """End the thread and return the samples."""
        self._stopped.set()
        self._thread.join()
        return self.samples


def _open_files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _size_bytes(directory: Path) -> int:
    """The size of all files below ``directory``; ``os.walk`` skips directories that vanish meanwhile."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except OSError:
                pass  # compacted away meanwhile
    return total


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a run, from ``from_s`` on: the maximum of each figure, and its latencies."""

    from_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float
    p50_ms: float
    p99_ms: float


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value that ``part`` (0 to 1) of the sorted ``ordered`` does not exceed."""
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 2)


def spans(samples: Sequence[Sample], waits_ms: Sequence[float], per_second: int) -> tuple[Span, ...]:
    """Cut a run into PARTS. ``waits_ms``: the delay of each message in the order of submission, ``per_second``."""
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
                    quantile(waited, 0.50),
                    quantile(waited, 0.99),
                )
            )
    return tuple(found)
