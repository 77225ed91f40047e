"""Lists the files below a directory of this machine: Spark starts a job for that, which takes ten seconds for those of a year."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.deferred_session import DeferredSession
from zonemta_py.pipeline.spark.storage import is_url, local_path

HIDDEN = ("_", ".")  # names that Spark leaves out, too


def local_files(spark: SparkSession, path: str) -> dict[str, int] | None:
    """The length of each file below ``path``, by its path as Spark writes it; None when that is not a directory of this machine.
    Raises LocalError for one that cannot be read: its events must not be missing without a word.

    Over Spark Connect the directory is one of the server.
    """
    if is_url(path) or not is_here(spark) or not Path(path).is_dir():
        return None
    return dict(_files_below(str(local_path(path)), set()))


def _files_below(directory: str, seen: set[str]) -> Iterator[tuple[str, int]]:
    """Those of links to directories, too: old days may be on another disk. ``seen``: where these have led, because one may lead back."""
    real = os.path.realpath(directory)
    if real in seen:
        return
    seen.add(real)
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                is_lost = entry.is_symlink() and not Path(entry.path).exists()
                if is_lost or entry.name.startswith(HIDDEN):
                    continue
                if entry.is_dir():
                    yield from _files_below(entry.path, seen)
                    continue
                with suppress(FileNotFoundError):  # the relay has removed it meanwhile
                    yield f"file:{entry.path}", entry.stat().st_size
    except FileNotFoundError:
        return  # so may the directory be
    except OSError as exc:
        raise LocalError(f"{directory}: {exc.strerror}") from exc


def local_size_bytes(spark: SparkSession, path: str) -> int | None:
    """The size of a file, or of the files below a directory; None when it is not on this machine."""
    if not is_url(path) and is_here(spark) and Path(path).is_file():
        return Path(path).stat().st_size
    files = local_files(spark, path)
    return None if files is None else sum(files.values())


def is_here(spark: SparkSession) -> bool:
    """Whether the driver is this process, so that its paths are those of this machine: not over Spark Connect."""
    return isinstance(spark, DeferredSession) or hasattr(spark, "_jvm")
