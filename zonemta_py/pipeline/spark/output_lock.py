"""One run writes to an output directory: two of them, such as a scheduler's retry beside the first try, would mix their files.

The lock is one of the directory itself (flock), so that it leaves nothing behind and ends with the process. Object stores and other
file systems of Spark have none, nor has a directory of another machine that is reached over Spark Connect.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.listing import is_here
from zonemta_py.pipeline.spark.lists import TABLE
from zonemta_py.pipeline.spark.storage import PATTERN, is_url, local_path

P = ParamSpec("P")
R = TypeVar("R")


class _Request(Protocol):
    @property
    def output(self) -> str | None: ...


RequestT = TypeVar("RequestT", bound=_Request)


def locks_output(
    job: Callable[Concatenate[SparkSession, RequestT, P], R],
) -> Callable[Concatenate[SparkSession, RequestT, P], R]:
    """``job`` with the output of its request locked while it runs. It raises LocalError when another run has it."""

    @wraps(job)
    def locked(spark: SparkSession, request: RequestT, /, *args: P.args, **options: P.kwargs) -> R:
        if request.output is None:
            return job(spark, request, *args, **options)
        with locked_output(spark, request.output):
            return job(spark, request, *args, **options)

    return locked


@contextmanager
def locked_output(spark: SparkSession, output: str) -> Iterator[None]:
    """Raises LocalError when another run has the directory, for one that cannot be made, and for a name that cannot be read again.

    The directory is made; it is removed in the end if it is empty.
    """
    if output.startswith(TABLE):
        yield
        return
    path = output if is_url(output) else str(local_path(output))
    if found := sorted(PATTERN & set(path)):
        raise LocalError(f"{path}: a path with {found[0]} is a pattern to Spark; choose another name")
    if is_url(output) or not is_here(spark):
        yield
        return
    directory = local_path(output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise LocalError(f"{output}: {exc.strerror}") from exc
    try:
        _lock(handle, output)
        try:
            yield
        finally:
            with suppress(OSError):
                directory.rmdir()  # only by the run that has it
    finally:
        os.close(handle)


def _lock(handle: int, output: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LocalError(f"{output}: another run writes here; wait until it ends") from None
    except OSError:
        pass  # a file system without locks
