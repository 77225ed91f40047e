"""A session that starts when it is needed: a report of a few segments is made faster without one (decision 104)."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession


class DeferredSession:
    """Stands for the session that ``opened`` returns, which is called when something of it is used. Not for Spark Connect."""

    def __init__(self, opened: Callable[[], SparkSession]) -> None:
        self._opened = opened
        self._session: SparkSession | None = None

    @property
    def is_open(self) -> bool:
        """Whether the session has started."""
        return self._session is not None

    def __getattr__(self, name: str) -> Any:
        if self._session is None:
            with _same_handler():
                self._session = self._opened()
        return getattr(self._session, name)

    def stop(self) -> None:
        """Stop the session, if it has started."""
        if self._session is not None:
            self._session.stop()


@contextmanager
def _same_handler() -> Iterator[None]:
    """Keep the job's own handler of SIGINT, which Spark would replace (``intervals``)."""
    before = signal.getsignal(signal.SIGINT)
    yield
    is_own = before is not signal.default_int_handler
    if is_own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def is_deferred(spark: SparkSession) -> bool:
    """Whether the session has not started yet."""
    return isinstance(spark, DeferredSession) and not spark.is_open
