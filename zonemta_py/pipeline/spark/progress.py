"""How far a job is: the steps that it reports, and the rows of the Parquet files that it has written.

Spark reports a task only when it is done. The job therefore closes a file every ROWS_PER_FILE rows, and
the footers of the closed files are counted while the job runs. A task that runs again writes files of the same names.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_FILE = 5000
POLL_S = 1.0

Progress = Callable[[str], None]  # called with a line for the operator when a step begins


@contextmanager
def report_rows(path: str, report: Callable[[int], None]) -> Iterator[None]:
    """Call ``report`` from a thread with the number of rows below ``path`` whenever it grows.

    Only where ``path`` is a local directory; elsewhere ``report`` is not called.
    """
    if "://" in path:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(Path(path), report, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(directory: Path, report: Callable[[int], None], done: threading.Event) -> None:
    rows: dict[str, int] = {}
    while not done.wait(POLL_S):
        before = len(rows)
        for path in _parquet_files(directory):
            if path.name not in rows:
                closed = _rows_of(path)
                if closed is not None:
                    rows[path.name] = closed
        if len(rows) > before:
            report(sum(rows.values()))


def _parquet_files(directory: Path) -> Iterator[Path]:
    """Spark removes its temporary directories meanwhile: ``os.walk`` skips those, ``rglob`` raises."""
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names if name.endswith(".parquet"))


def _rows_of(path: Path) -> int | None:
    """None for a file that is not complete yet or was moved meanwhile."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowInvalid, OSError):
        return None
