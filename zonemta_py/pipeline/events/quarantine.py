"""What is damaged or missing in an event log, as the output of a job keeps it: OUTPUT/quarantine/segments.jsonl, a line for each."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.spark.files import names_in, read_text, write_text

QUARANTINE = "quarantine"
BESIDE_ROWS = "_quarantine"  # in the directory of a table, where Spark reads no names that begin so
FILE = "segments.jsonl"


class Damage(NamedTuple):
    """A damaged segment, or a place where segments are missing: then ``path`` is empty.

    ``offset``: the byte at which the damage begins. ``readable``: the records that are in the sums all the same. ``unread``: the lines
    that can be decompressed and are not: what is no event, and the rest of its group commits.
    """

    reason: str
    path: str = ""
    offset: int = 0
    readable: int = 0
    unread: int = 0

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        unread = f", {self.unread:,} lines not" if self.unread else ""
        return f"{self.reason}; {self.readable:,} of its records are read{unread}"


def write_quarantine(
    spark: SparkSession, output: str, damage: Iterable[Damage], name: str = QUARANTINE
) -> None:
    """Write or replace the file; without damage it is empty. ``name``: of its directory. Raises LocalError."""
    lines = (
        json.dumps(
            {"file": each.path or None, "offset": each.offset, "reason": each.reason, "readable": each.readable,
             "unread": each.unread}
        )
        for each in damage
    )  # fmt: skip
    write_text(spark, f"{output}/{name}/{FILE}", "".join(f"{line}\n" for line in lines))


def read_quarantine(spark: SparkSession, output: str) -> list[Damage] | None:
    """The damage; None when there is no file, or none that this process can look at. Raises LocalError."""
    path = f"{output}/{QUARANTINE}/{FILE}"
    if FILE not in (names_in(spark, f"{output}/{QUARANTINE}") or ()):
        return None
    found = []
    try:
        for line in (read_text(spark, path) or "").splitlines():
            each = json.loads(line)
            numbers = (each["offset"], each["readable"], each.get("unread", 0))  # the last is new
            found.append(Damage(each["reason"], each["file"] or "", *numbers))
    except (ValueError, KeyError, TypeError) as exc:
        raise LocalError(f"{path}: not a file of the pipeline: {exc}") from exc
    return found
