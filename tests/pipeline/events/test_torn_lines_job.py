"""Lines that are torn inside whole frames, of a segment without a trailer: no sum is smaller without a word."""

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.kit.segments import of_earlier_version
from tests.pipeline.campaigns import no_progress, open_log, report
from tests.pipeline.segments import HOUR_BEGINS_MS, delivered
from zonemta_py.core.codec import to_json
from zonemta_py.events.segments import Segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES, LINES, TORN = 10, 400, 100  # lines and torn lines of each frame


def write_torn(directory: Path) -> tuple[Path, bytes]:
    """A segment of an earlier version with 1,000 torn lines in groups of four, and what it was before."""
    random = Random(3)
    found, path = [], directory
    for is_torn in (True, False):
        segment = Segment(directory, "abcdef", 1)
        for begin in range(0, FRAMES * LINES, LINES):
            lines = [
                to_json(delivered(1 + n // 4, position=n % 4, time_ms=HOUR_BEGINS_MS))
                for n in range(begin, begin + LINES)
            ]
            for n in random.sample(range(1, LINES - 1), TORN) if is_torn else ():
                lines[n] = _torn(lines[n], random)
            segment.append(b"".join(line + b"\n" for line in lines), 1 + (begin + LINES - 1) // 4)
        sealed = segment.seal(HOUR_BEGINS_MS)
        assert sealed is not None
        path = sealed
        found.append(of_earlier_version(path.read_bytes()))
        path.unlink()
    path.write_bytes(found[0])
    return path, found[1]


def _torn(line: bytes, random: Random) -> bytes:
    """Its head, its tail, or both of them without the middle."""
    a, b = sorted(random.sample(range(1, len(line)), 2))
    return random.choice([line[:a], line[b:], line[:a] + b"\0" + line[b:]])


def test_the_damage_is_counted(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.events.rows import read_events
    from zonemta_py.pipeline.report.job import ReportRequest

    write_torn(tmp_path / "events")
    log = open_log(spark, tmp_path / "events")
    assert damage_counts(log) == {"damaged_segments": 1, "gaps": 0}
    [damage] = log.damage
    sums = report(spark, ReportRequest(str(tmp_path / "events"), (), str(tmp_path / "report")))
    rows = read_events(spark, log).select("seq", "event").collect()
    assert sums["delivered"] == damage.readable == len(rows)
    assert {row["event"] for row in rows} == {"delivered"}
    # Three of four lines are whole: with TORN in a hundred groups a third of the groups is.
    assert FRAMES * LINES // 8 < damage.readable < FRAMES * (LINES - TORN)
    assert (tmp_path / "report" / "quarantine" / "segments.jsonl").exists()


def test_what_is_restored(spark: "SparkSession", tmp_path: Path) -> None:
    """Each event is there once when the segment is whole again."""
    from zonemta_py.pipeline.events.compact import CompactRequest, compact
    from zonemta_py.pipeline.report.job import ReportRequest, update_report

    path, whole = write_torn(tmp_path / "events")
    lake = CompactRequest(str(tmp_path / "events"), str(tmp_path / "lake"))
    request = ReportRequest(str(tmp_path / "events"), (), str(tmp_path / "report"))
    torn = compact(spark, lake, no_progress)
    sums, log = update_report(spark, request, None, no_progress)
    assert torn.records == sums["delivered"] == log.damage[0].readable
    path.write_bytes(whole)
    assert torn.records + compact(spark, lake, no_progress).records == FRAMES * LINES
    sums, log = update_report(spark, request, None, no_progress)
    assert (sums["delivered"], log.damage) == (FRAMES * LINES, [])
    assert spark.read.parquet(lake.lake).distinct().count() == FRAMES * LINES
