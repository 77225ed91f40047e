"""Signals to the whole process group (Ctrl-C, the stop of a service manager) while a process starts.

Until its handlers are set they would end it, or raise KeyboardInterrupt anywhere. Blocked, they wait.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)


def block() -> None:
    """Let signals wait, here and in processes that are started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def unblock() -> None:
    """Receive signals, and those that wait: the handlers are set."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


@contextmanager
def blocked() -> Iterator[None]:
    """Start a process in this context: signals to it wait until it calls ``unblock``."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
