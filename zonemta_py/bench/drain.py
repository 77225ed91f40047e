"""Waiting for a relay that runs in a process of its own to have nothing left."""

import time
from pathlib import Path

from zonemta_py.admin.control import ask
from zonemta_py.core.errors import LocalError

LOOK_EVERY_S = 0.2


def wait_empty(queue: Path, timeout_s: float) -> None:
    """Until nothing waits in ``queue``. Raises LocalError when that takes too long."""
    end_s = time.monotonic() + timeout_s
    while any("places" in row for row in ask(queue, "places", {})):
        if time.monotonic() > end_s:
            raise LocalError(f"{queue}: still not empty after {timeout_s:.0f} s")
        time.sleep(LOOK_EVERY_S)
