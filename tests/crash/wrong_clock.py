"""``zonemta`` on a machine whose clock is wrong at first: by WRONG_CLOCK_S seconds, until it is set right."""

import os
import threading
import time
from types import SimpleNamespace

from zonemta_py.cli.main import main
from zonemta_py.core import clock

VARIABLE = "WRONG_CLOCK_S"
WRONG_FOR_S = 1.5  # since the start of the process


def wrong(offset_s: float) -> None:
    """Let the clock be wrong by ``offset_s`` for WRONG_FOR_S."""
    shown = SimpleNamespace(
        time_ns=lambda: time.time_ns() + int(offset_s * 1e9), monotonic=time.monotonic
    )
    vars(clock)["time"] = shown

    def set_right() -> None:
        vars(clock)["time"] = time

    timer = threading.Timer(WRONG_FOR_S, set_right)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    wrong(float(os.environ[VARIABLE]))
    main()
