"""Damaged and missing segments are named before Spark reads the rest, and the exit code says so."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from tests.kit.segments import of_earlier_version
from tests.pipeline.campaigns import open_log, report
from tests.pipeline.segments import HOUR_BEGINS_MS, LENGTH, delivered, write_log, write_segment
from zonemta_py.cli.pipeline.common import SparkOptions, spark_options
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events.segments import Segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def damage(spark: "SparkSession", directory: Path) -> list[str]:
    return list(map(str, open_log(spark, directory).damage))


def test_a_whole_log(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.events.rows import read_events

    write_log(tmp_path)
    log = open_log(spark, tmp_path)
    assert (log.damage, len(log.segments), log.records, log.parts) == ([], 4, 4 * LENGTH, {})
    lake = tmp_path / "lake"
    read_events(spark, log).write.parquet(str(lake))
    assert open_log(spark, lake).is_compacted
    with pytest.raises(LocalError, match="no event log here"):
        open_log(spark, tmp_path / "no such directory")
    (tmp_path / "list.csv").write_text("email\n")
    with pytest.raises(LocalError, match="no event log here: found a file, expected a directory"):
        open_log(spark, tmp_path / "list.csv")


def test_a_cut_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """Cut behind its first frame, which Spark reads without an error: what is behind it is missing."""
    _, cut, *_ = write_log(tmp_path)
    os.truncate(cut, cut.stat().st_size // 2)
    problems = damage(spark, tmp_path)
    assert f"{cut.name}: damaged at byte " in problems[0]
    assert "events between 000000000000001e and 0000000000000029" in problems[1]


def test_every_cut_and_every_flip(tmp_path: Path) -> None:
    """Each is found, none ends the job, and the records that are counted as readable are those that are read."""
    from zonemta_py.pipeline.events.log import examine_segment, lines_of

    path = write_segment(tmp_path, "a", [delivered(seq) for seq in range(1, 9)])
    whole, name = path.read_bytes(), str(path)
    assert examine_segment(name, whole)[1] == ""
    damaged = [whole[:cut] for cut in range(len(whole))]
    damaged += [
        bytes([*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :]]) for at in range(len(whole))
    ]
    for content in damaged:
        _, problem, _, _, readable, *_ = examine_segment(name, content)
        assert problem, len(content)
        lines = b"".join(lines_of(content, name, {})).splitlines()
        assert readable == len(lines) <= 8
        assert all(line in whole_lines_of(whole, name) for line in lines)


def whole_lines_of(content: bytes, name: str) -> list[bytes]:
    from zonemta_py.pipeline.events.log import lines_of

    return b"".join(lines_of(content, name, {})).splitlines()


def test_flipped_and_missing(spark: "SparkSession", tmp_path: Path) -> None:
    flipped, _, missing, last = write_log(tmp_path)
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    missing.unlink()
    problems = damage(spark, tmp_path)
    assert [f"{flipped.name}: its bytes have another digest" in text for text in problems] == [
        True,
        False,
    ]
    assert last.name in problems[1]
    assert problems[1].endswith("of node abcdef are missing")


def test_a_segment_without_a_trailer(spark: "SparkSession", tmp_path: Path) -> None:
    """Of an earlier version: its frames and records are read instead. One of this version was cut."""
    first, second = write_log(tmp_path, 2)
    trailer, whole = 80, first.read_bytes()
    first.write_bytes(of_earlier_version(whole))
    assert damage(spark, tmp_path) == []
    first.write_bytes(whole[:-trailer])
    [problem] = damage(spark, tmp_path)
    assert problem.endswith(f"{first.name}: its end is missing; {LENGTH} of its records are read")
    first.write_bytes(whole)
    second.write_bytes(second.read_bytes()[: -trailer - 3])
    [problem] = damage(spark, tmp_path)
    assert f"{second.name}: damaged at byte " in problem


def test_a_segment_that_was_sealed_with_a_gap(spark: "SparkSession", tmp_path: Path) -> None:
    """By a start of an earlier version: it is named in each run, once, and all of its records are read."""
    segment = Segment(tmp_path, "abcdef", 1)
    for seqs in (range(1, 11), range(15, 25)):
        segment.append(b"".join(to_json(delivered(seq)) + b"\n" for seq in seqs), seqs[-1])
    path = segment.seal(HOUR_BEGINS_MS)
    assert path is not None
    [problem] = damage(spark, tmp_path)
    assert f"{path.name}: events between 000000000000000a and 000000000000000f" in problem
    assert problem.endswith("; 20 of its records are read")
    assert seqs_read(spark, tmp_path) == [*range(1, 11), *range(15, 25)]
    assert sums_read(spark, tmp_path) == 20
    log = open_log(spark, tmp_path)
    assert log.read is not None
    assert log.read.ranges == {"abcdef": [(1, 10), (15, 24)]}


@pytest.mark.usefixtures("kept_session")
def test_the_exit_code(tmp_path: Path) -> None:
    """The job is done, its result is printed, and then the damage: exit code 3."""
    from zonemta_py.pipeline.events.rows import read_events

    @click.command()
    @spark_options
    def count(spark: SparkOptions) -> None:
        with spark.job(str(tmp_path)) as (session, _):
            click.echo(json.dumps({"events": read_events(session, spark.log).count()}))

    paths = write_log(tmp_path)
    assert CliRunner().invoke(count).exit_code == 0
    paths[1].unlink()
    result = CliRunner().invoke(count)
    assert (result.exit_code, result.stdout) == (3, '{"events": 60}\n')
    assert f"{paths[2].name}: events between" in result.stderr


def seqs_read(spark: "SparkSession", directory: Path) -> list[int]:
    from zonemta_py.pipeline.events.rows import read_events

    rows = read_events(spark, open_log(spark, directory))
    assert {(f"{row['date']}", row["hour"]) for row in rows.select("date", "hour").collect()} == {
        ("2027-01-15", 2)
    } or not rows.count()
    return sorted(row["seq"] for row in rows.select("seq").collect())


def sums_read(spark: "SparkSession", directory: Path) -> int:
    """The deliveries that a report counts, which does not read events by Spark."""
    from zonemta_py.pipeline.report.sums import attempt_sums

    rows = attempt_sums(spark, open_log(spark, directory)).to_pylist()
    return sum(row["delivered"] for row in rows if row["dimension"] == "all")


def test_whole_frames_of_damaged_segments_are_read(spark: "SparkSession", tmp_path: Path) -> None:
    """Every frame but the damaged ones, before and behind them; Spark alone fails at the first."""
    cut, flipped, *_ = write_log(tmp_path)
    os.truncate(cut, cut.stat().st_size - 100)  # into the second of its frames
    data = bytearray(flipped.read_bytes())
    data[30] ^= 0xFF  # in the first of its frames
    flipped.write_bytes(data)
    assert seqs_read(spark, tmp_path) == [*range(1, 11), *range(31, 81)]
    assert sums_read(spark, tmp_path) == 60
    assert "; 10 of its records are read" in damage(spark, tmp_path)[0]


def test_only_damaged_segments(spark: "SparkSession", tmp_path: Path) -> None:
    (cut,) = write_log(tmp_path, 1)
    os.truncate(cut, cut.stat().st_size - 100)
    assert seqs_read(spark, tmp_path) == [*range(1, 11)]


def test_repeated_segments(spark: "SparkSession", tmp_path: Path) -> None:
    """A copy under another name, one that was sealed twice, and one that overlaps two others."""
    first, *_ = write_log(tmp_path)
    (first.parent / "copy.jsonl.zst").write_bytes(first.read_bytes())
    (first.parent / f"{first.name[:-10]}-2.jsonl.zst").write_bytes(first.read_bytes())
    segment = Segment(tmp_path / "other", "abcdef", 15)
    for seq in range(15, 30):
        segment.append(to_json(delivered(seq)) + b"\n", seq)
    path = segment.seal(HOUR_BEGINS_MS)
    assert path is not None
    path.replace(first.parent / path.name)
    assert damage(spark, tmp_path) == []
    assert seqs_read(spark, tmp_path) == [*range(1, 81)]
    assert sums_read(spark, tmp_path) == 80


def test_a_part_of_a_segment_with_unusual_line_ends(spark: "SparkSession", tmp_path: Path) -> None:
    """Which are part of a text in JSON."""
    for seqs, name in ((range(3), "a"), (range(2, 6), "b")):
        write_segment(
            tmp_path,
            name,
            [delivered(seq, reply=f"ok\u2028{seq}\x85", time_ms=HOUR_BEGINS_MS) for seq in seqs],
        )
    from zonemta_py.pipeline.events.rows import read_events

    rows = read_events(spark, open_log(spark, tmp_path)).select("seq", "reply").collect()
    assert sorted(map(tuple, rows)) == [(seq, f"ok\u2028{seq}\x85") for seq in range(6)]


def test_what_was_read_before(spark: "SparkSession", tmp_path: Path) -> None:
    """Only segments that are new, or changed, are verified; a gap to what was read before is found."""
    from zonemta_py.pipeline.events.log import open_log as open_unread

    paths = write_log(tmp_path)
    moved = [path.rename(path.with_suffix(".aside")) for path in paths[1:]]
    before = open_log(spark, tmp_path)
    moved[1].rename(paths[2])
    now = open_unread(spark, str(tmp_path), before.read, before.names)
    assert ([path.rpartition("/")[2] for path in now.segments], now.known) == ([paths[2].name], 1)
    assert "events between 0000000000000014 and 0000000000000029" in str(now.damage[0])
    moved[0].rename(paths[1])
    later = open_unread(spark, str(tmp_path), now.read, [*before.names, *now.names])
    assert ([path.rpartition("/")[2] for path in later.segments], later.damage) == ([paths[1].name], [])


def test_a_report_of_a_damaged_log(spark: "SparkSession", tmp_path: Path) -> None:
    """The page begins with the damage, the quarantine names file and offset; the next report has none."""
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.job import ReportRequest

    events, output = tmp_path / "events", tmp_path / "report"
    _, cut, *_ = write_log(events)
    whole = cut.read_bytes()
    os.truncate(cut, cut.stat().st_size - 100)
    assert damage_counts(open_log(spark, events)) == {"damaged_segments": 1, "gaps": 1}
    sums = report(spark, ReportRequest(str(events), (), str(output)))
    assert sums["delivered"] == 4 * LENGTH - 10
    page = (output / "report.html").read_text()
    assert "no damage found" not in page
    assert cut.name in page
    lines = [
        json.loads(line) for line in (output / "quarantine" / "segments.jsonl").read_text().splitlines()
    ]
    assert [(Path(each["file"] or "").name, each["readable"]) for each in lines] == [
        (cut.name, 10),
        ("", 0),
    ]
    assert 0 < lines[0]["offset"] < len(whole)
    cut.write_bytes(whole)
    again = ReportRequest(str(events), (), str(output), overwrite=True)
    assert report(spark, again)["delivered"] == 4 * LENGTH
    assert not (output / "quarantine").exists()
    assert "no damage found" in (output / "report.html").read_text()


def test_files_are_listed_as_spark_does(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same paths and lengths, also of a relative directory; a segment that was read is not read again."""
    from zonemta_py.pipeline.events import log as event_log
    from zonemta_py.pipeline.events.coverage import Coverage
    from zonemta_py.pipeline.spark import files as listing

    log = tmp_path / "a log"
    write_log(log)
    (log / ".index").write_text("x")
    (log / "_hidden").mkdir()
    (log / "_hidden" / "abcdef-0000000000000001.jsonl.zst").write_text("x")
    relative = os.path.relpath(log)
    for path in (str(log), relative, f"{log}/../a log", f"{log}/"):
        files = listing.local_files(spark, path)
        with monkeypatch.context() as patched:
            patched.setattr(event_log, "local_files", lambda *_: None)
            assert event_log.segment_lengths(spark, path) == files
        assert len(files or ()) == 4
        first = event_log.open_log(spark, path)
        again = event_log.open_log(spark, path, first.read or Coverage(), first.names)
        assert (len(first.names), again.segments, again.known) == (4, [], 4)


def test_links_and_directories_that_cannot_be_read(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Days that are on another disk are read, once, and a link that leads back is none; what cannot be read is an error."""
    from zonemta_py.pipeline.spark.files import local_files

    log, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    write_log(log, 3)
    [day] = [path for path in log.iterdir() if path.is_dir()]
    day.rename(elsewhere)
    day.symlink_to(elsewhere)
    (log / "again").symlink_to(log)
    (log / "lost").symlink_to(tmp_path / "nowhere")
    (log / "itself").symlink_to(log / "itself")
    assert len(local_files(spark, str(log)) or ()) == 3
    assert sums_read(spark, log) == len(seqs_read(spark, log)) == 3 * LENGTH

    def refuses(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(LocalError, match=f"{log}: Permission denied"):
        local_files(spark, str(log))


def test_a_segment_that_is_sealed_meanwhile(spark: "SparkSession", tmp_path: Path) -> None:
    """What a job has listed and verified is read, and nothing else: the next run would read it again."""
    from zonemta_py.pipeline.events.rows import read_events

    write_log(tmp_path, 2)
    log = open_log(spark, tmp_path)
    write_log(tmp_path, 3)
    assert log.contents(spark).count() == 2
    assert read_events(spark, log).count() == 2 * LENGTH
    assert open_log(spark, tmp_path).records == 3 * LENGTH


def test_a_segment_that_is_removed_meanwhile(spark: "SparkSession", tmp_path: Path) -> None:
    """Its events were to be counted: what is left of them would be a smaller sum."""
    from zonemta_py.pipeline.events.rows import read_events

    write_log(tmp_path, 3)
    log = open_log(spark, tmp_path)
    min(tmp_path.rglob("*.jsonl.zst")).unlink()
    for read in (log.contents, lambda spark: read_events(spark, log)):
        with pytest.raises(LocalError, match="was removed while it was read; run the job again"):
            read(spark).count()
