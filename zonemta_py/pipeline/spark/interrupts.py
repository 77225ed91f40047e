"""Ctrl-C ends a job with one line, at once, as if it were killed: the same command, run again, completes the work.

Spark's own handler calls into Java in the middle of another call to it; both fail, and Java and Python print their stacks.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark import SparkContext

INTERRUPTED = 130  # the exit code of a process that SIGINT ended, as shells have it
ANSWER_S = 2.0  # for Java to answer
MESSAGE = b"interrupted: start it again (send: resume) to complete the work\n"
SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT ends the process meanwhile. Handlers that a job has of its own come before (``intervals``)."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as nohup sets it
        yield
        return
    before = signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def same_handler() -> Iterator[None]:
    """Keep the handler of SIGINT, which a session that starts would replace."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        is_own = before is not signal.default_int_handler
        if is_own and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _end(*_: object) -> None:
    # In a thread of its own: this one may be in a call to Java.
    silencing = threading.Thread(target=_silence_java, daemon=True)
    silencing.start()
    silencing.join(ANSWER_S)
    with suppress(OSError):
        os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + MESSAGE)
    os._exit(INTERRUPTED)


def _silence_java() -> None:
    """Stop Java's log: its tasks fail when this process ends."""
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):
            context.setLogLevel("OFF")
