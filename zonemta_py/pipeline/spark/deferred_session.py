"""A session that starts when it is needed: a report of a few segments is made faster without one (decision 104)."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from zonemta_py.pipeline.spark.interrupts import same_handler


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
            with same_handler():
                self._session = self._opened()
        return getattr(self._session, name)

    def stop(self) -> None:
        """Stop the session, if it has started."""
        if self._session is not None:
            self._session.stop()


def is_deferred(spark: SparkSession) -> bool:
    """Whether the session has not started yet."""
    return isinstance(spark, DeferredSession) and not spark.is_open
