"""What a relay takes while it runs, looked at again and again from outside."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from zonemta_py.bench.children import family, rss_anon_bytes

EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Sample:
    """One look, ``at_s`` after the first; ``queue_mb`` is the queue's folder, without the event log."""

    at_s: float
    rss_anon_mb: float
    open_files: int
    queue_mb: float


class Sampler:
    """Looks at the processes of ``pid`` and the queue in ``folder`` until it is stopped."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.samples: list[Sample] = []
        self._pid = pid
        self._queue = folder / "queue"
        self._over = threading.Event()
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._look_on, name="sampler", daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._over.is_set():
            self.samples.append(self._look())
            self._over.wait(EVERY_S)

    def _look(self) -> Sample:
        return Sample(
            round(time.monotonic() - self._began_s, 2),
            round(rss_anon_bytes(self._pid) / 1e6, 1),
            sum(map(_open_files, family(self._pid))),
            round(_size_bytes(self._queue) / 1e6, 1),
        )

    def stop(self) -> list[Sample]:
        """No more looks; those there were."""
        self._over.set()
        self._thread.join()
        return self.samples


def _open_files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def _size_bytes(folder: Path) -> int:
    """What the files take; folders and files may go meanwhile, which ``os.walk`` passes over."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(place, name).stat().st_size
            except OSError:
                pass  # compacted away meanwhile
    return total
