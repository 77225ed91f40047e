"""Runs a job again and again, until SIGINT."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from zonemta_py.core import clock


def repeat_until_interrupted(run: Callable[[], None], every_s: float | None) -> None:
    """Call ``run`` once; with ``every_s`` at this interval, until SIGINT, and then finish the current call."""
    with _interrupted() as interrupted:
        while True:
            began_s = clock.monotonic_s()
            try:
                run()
            except KeyboardInterrupt:
                return
            if every_s is None or interrupted.wait(max(0.0, began_s + every_s - clock.monotonic_s())):
                return


@contextlib.contextmanager
def _interrupted() -> Iterator[threading.Event]:
    """An event that SIGINT sets; a second SIGINT raises KeyboardInterrupt.

    Spark's own handler calls into Java in the middle of another call to it, and both fail.
    """
    interrupted = threading.Event()

    def on_signal(*_: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
