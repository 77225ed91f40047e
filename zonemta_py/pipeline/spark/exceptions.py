"""Spark's exceptions as one line that names the file or table and the last cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from zonemta_py.core.errors import LocalError

_READ = re.compile(r"Encountered error while reading file (?:file:/*(?=/))?(\S+?)\. ")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_THROWN = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)  # by a method that Py4J called

_HEADER = re.compile(
    r"CSV header does not conform to the schema\.\s+Header: (.+)\s+Schema: (.+)"
    r"|Number of column in CSV header .*\s+Header length: (\d+), schema size: (\d+)"
)
_CSV_FILE = re.compile(r"CSV file: (?:file:/*(?=/))?(\S+)")
_OWN = re.compile(r"^\s*zonemta_py\.core\.errors\.LocalError: (.+)$", re.MULTILINE)  # by a task of ours
_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\] |;? SQLSTATE: \w{5}\b.*$")  # Spark's names of an error
_NO_PATH = re.compile(r"Path does not exist: (?:file:/*(?=/))?(.+?)\.(?: SQLSTATE|$)")
_RAISED = re.compile(r"^\s*([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)  # by a Python worker


@contextmanager
def spark_errors(context: str) -> Iterator[None]:
    """Raise LocalError for any exception of Spark: that of a task, or one whose text begins with ``context``."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as exc:
        raise LocalError(
            f"{context}: Java has ended; if it had too little memory (see above), give it more with --heap"
        ) from exc
    except (PySparkException, Py4JError) as exc:
        if own := _OWN.search(str(exc)):
            raise LocalError(own[1]) from exc
        raise LocalError(f"{context}: {error_line(str(exc))}") from exc


def analysed(rows: DataFrame) -> DataFrame:
    """``rows``, analysed now: over Spark Connect a missing path would be found only where they are used.

    Raises pyspark's AnalysisException.
    """
    assert rows.schema is not None  # asks for it
    return rows


def error_line(text: str) -> str:
    """The most specific line of a Java stack trace; for a CSV file with other columns, which ones."""
    file, header = _READ.search(text), _HEADER.search(text)
    if header is not None:
        named = _CSV_FILE.search(text)
        name = file[1] if file else named[1] if named else "a CSV file"
        own, others = (each.strip() for each in header.groups() if each is not None)
        own = f"{own} columns" if header[3] else f"the columns {own}"
        return (
            f"{name} has {own}, other files have {others}: "
            "give all files the same columns in the same order"
        )
    if missing := _NO_PATH.search(text):
        return f"{missing[1]} does not exist"
    causes = _CAUSE.findall(text) or _THROWN.findall(text) or _RAISED.findall(text)
    cause = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "")
    cause = _CONDITION.sub("", cause)
    return f"{file[1]} cannot be read: {cause}" if file else cause
