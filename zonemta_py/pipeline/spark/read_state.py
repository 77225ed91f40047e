"""What a job that is run again has read of an event log.

DIRECTORY/state.json             the number of complete runs, the ranges of SEQ, and counts; replaced by each run
DIRECTORY/segments-N.txt         the segments that run N has read; without meaning if state.json has a lower number
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.coverage import Coverage
from zonemta_py.pipeline.spark.storage import names_in, read_text, write_text

if TYPE_CHECKING:
    from zonemta_py.pipeline.spark.event_log import EventLog

FORMAT = 1
STATE = "state.json"


@dataclass(frozen=True, slots=True)
class ReadState:
    """``run``: the number of the last complete run; 0: none. ``records`` and ``segments``: how many were read.

    ``sums``: the files of sums of a report, by name, with the run that wrote each.
    """

    run: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    records: int = 0
    segments: int = 0
    sums: Mapping[str, int] = field(default_factory=dict)

    def after(self, log: "EventLog", sums: Mapping[str, int] | None = None) -> "ReadState":
        """The state when ``log`` is read, by the next run; ``sums``: the files with its events, too."""
        coverage = log.read or self.coverage
        records, segments = self.records + log.records, self.segments + log.first_read
        return ReadState(self.run + 1, coverage, records, segments, sums or {})


def names_read(spark: SparkSession, directory: str, run: int) -> set[str]:
    """The names of the segments that the runs up to ``run`` have read. Raises LocalError."""
    names: set[str] = set()
    for name in names_in(spark, directory) or ():
        number = name.removeprefix("segments-").removesuffix(".txt")
        if number.isdecimal() and int(number) <= run:
            names.update((read_text(spark, f"{directory}/{name}") or "").splitlines())
    return names


def read_state(spark: SparkSession, directory: str) -> ReadState:
    """The state; that before the first run if there is none. Raises LocalError for one that is not of this version."""
    path = f"{directory}/{STATE}"
    text = read_text(spark, path)
    if text is None:
        return ReadState()
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise LocalError(f"{path}: written by another version; begin again in another directory")
        coverage = Coverage(found["ranges"])
        return ReadState(
            found["run"], coverage, found["records"], found["segments"], found.get("sums", {})
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise LocalError(f"{path}: not a state of the pipeline: {exc}") from exc


def write_names(spark: SparkSession, directory: str, run: int, log: "EventLog") -> None:
    """Write which segments ``run`` has read. Raises LocalError."""
    write_text(spark, f"{directory}/segments-{run}.txt", "".join(f"{name}\n" for name in log.names))


def write_state(spark: SparkSession, path: str, state: ReadState) -> None:
    """Write the file ``path``, or replace it. Raises LocalError."""
    document = {
        "format": FORMAT,
        "run": state.run,
        "records": state.records,
        "segments": state.segments,
        "ranges": state.coverage.ranges,
        "sums": state.sums,
    }
    write_text(spark, path, json.dumps(document) + "\n")
