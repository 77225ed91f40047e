"""What Spark raises, as one line that helps: which file or table, and the last cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from zonemta_py.core.errors import LocalError

_READ = re.compile(r"Encountered error while reading file (?:file:/*(?=/))?(\S+?)\. ")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)

_RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)  # by a worker in Python


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turn whatever Spark raises into a LocalError that begins with ``what``."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise LocalError(f"{what}: {line_of(str(exc))}") from exc


def analysed(rows: DataFrame) -> DataFrame:
    """``rows``, looked at now: over Spark Connect what is not there would be found by whoever uses it."""
    assert rows.schema is not None  # asks for it
    return rows


def line_of(text: str) -> str:
    """The line that helps, out of a Java stack."""
    causes = _CAUSE.findall(text) or _RAISED.findall(text)
    cause = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "")
    file = _READ.search(text)
    return f"{file[1]} cannot be read: {cause}" if file else cause
