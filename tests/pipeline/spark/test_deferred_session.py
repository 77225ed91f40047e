"""A small event log is read without Spark, and gives what Spark's tasks would give."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from tests.pipeline.campaigns import sorted_rows
from tests.pipeline.segments import HOUR_BEGINS_MS, HOUR_MS, delivered, write_log, write_segment
from zonemta_py.cli.main import main
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ("rates", "hours", "days", "replies", "anomalies")


@pytest.fixture
def sessions(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sessions that commands have opened: that of all tests."""
    from tests.pipeline.conftest import KeptSession
    from zonemta_py.pipeline.spark import session

    found: list[object] = []

    def opened(*_: object, **__: object) -> KeptSession:
        found.append(spark)
        return KeptSession(spark)

    monkeypatch.setattr(session, "open_session", opened)
    return found


def pipeline(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments), "--json"])


def made(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def write_damaged(directory: Path) -> None:
    """Segments of which one is cut, one is there twice in part, and one has failures."""
    cut, *_ = write_log(directory)
    cut.write_bytes(cut.read_bytes()[:-100])
    write_segment(directory, "again", [delivered(n) for n in range(35, 45)])
    failed = {"event": "bounced", "code": 550, "status": "5.1.1"}
    bounced = [delivered(n, reply=f"no user {n}", **failed) for n in range(100, 130)]
    write_segment(directory, "later", bounced)


@pytest.mark.parametrize("mode", [(), ("--update",)])
def test_the_same_report(
    spark: "SparkSession",
    sessions: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: tuple[str, ...],
) -> None:
    """Tables, sums, exit code and quarantine, with a damaged segment and events that are there twice."""
    from zonemta_py.pipeline.events import log

    events = tmp_path / "events"
    write_damaged(events)
    here = pipeline("report", events, "--output", tmp_path / "here", *mode)
    assert not sessions
    monkeypatch.setattr(log, "SMALL_BYTES", 0)
    there = pipeline("report", events, "--output", tmp_path / "there", *mode)
    assert sessions
    assert here.exit_code == there.exit_code == 3, here.output
    assert made(here) == made(there)
    assert made(here)["damaged_segments"] == 1
    for name in TABLES:
        one, other = (spark.read.parquet(f"{tmp_path}/{path}/{name}") for path in ("here", "there"))
        assert sorted_rows(one) == sorted_rows(other), name
    quarantines = [tmp_path / path / "quarantine" / "segments.jsonl" for path in ("here", "there")]
    assert quarantines[0].read_text() == quarantines[1].read_text() != ""


def test_updates_in_turn(
    sessions: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One without Spark, one with, and one without again: each event is counted once."""
    from zonemta_py.pipeline.events import log

    events = tmp_path / "events"
    for number, small in enumerate((1 << 20, 0, 1 << 20)):
        monkeypatch.setattr(log, "SMALL_BYTES", small)
        first = 10 * number
        write_segment(events, f"s{number}", [delivered(n) for n in range(first, first + 10)])
        result = pipeline("report", events, "--output", tmp_path / "report", "--update")
        assert (result.exit_code, made(result)["delivered"]) == (0, first + 10), result.output
    assert len(sessions) == 1


def test_anomaly_needs_no_session(sessions: list[object], tmp_path: Path) -> None:
    write_log(tmp_path / "events")
    output = tmp_path / "hours"
    result = pipeline("anomaly", tmp_path / "events", "--output", output)
    assert result.exit_code == 0, result.output
    assert (output / "_SUCCESS").exists()
    assert not sessions


def test_a_session_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is that of the command, when the log is too large to do without."""
    from zonemta_py.pipeline.events import log
    from zonemta_py.pipeline.spark import session

    def fails(*_: object, **__: object) -> None:
        raise LocalError("no Java found")

    monkeypatch.setattr(session, "open_session", fails)
    monkeypatch.setattr(log, "SMALL_BYTES", 0)
    write_log(tmp_path / "events")
    result = pipeline("report", tmp_path / "events", "--output", tmp_path / "report")
    assert (result.exit_code, "no Java found" in result.stderr) == (1, True)


def test_events_of_no_relay(sessions: list[object], tmp_path: Path) -> None:
    """A sealed segment whose attempts have other fields is an error in one line."""
    write_segment(tmp_path / "events", "a", [delivered(1, code="x", time_ms=None)])
    result = pipeline("report", tmp_path / "events", "--output", tmp_path / "report")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    assert result.stderr.startswith(f"error: {tmp_path}/events: ")
    assert not sessions


def test_the_master_may_be_a_setting(tmp_path: Path) -> None:
    """The directory is one of the server then, and not that of this machine."""
    write_log(tmp_path / "events")
    output = ("--output", tmp_path / "report")
    result = pipeline("report", tmp_path / "events", *output, "--conf", "spark.master=sc://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no Spark Connect server" in result.stderr


def test_the_handler_of_interrupts_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark sets its own when it starts, in the middle of a job that has one."""
    from zonemta_py.pipeline.spark.session import DeferredSession

    def opened() -> Any:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return SimpleNamespace(version="4")

    def own(*_: object) -> None:
        """Of the job."""

    before = signal.signal(signal.SIGINT, own)
    try:
        assert DeferredSession(opened).version == "4"
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_file_of_sums_that_is_damaged_or_missing(sessions: list[object], tmp_path: Path) -> None:
    """The error names that file."""
    events, report = tmp_path / "events", tmp_path / "report"
    for day in range(3):
        times = [HOUR_BEGINS_MS + day * 24 * HOUR_MS + n for n in range(10)]
        first = 10 * day
        records = [delivered(first + n, time_ms=at_ms) for n, at_ms in enumerate(times)]
        write_segment(events, f"d{day}", records)
    assert pipeline("report", events, "--output", report, "--update").exit_code == 0
    [second] = sorted((report / "sums").glob("20*"))[1:2]
    second.write_bytes(b"no Parquet")
    assert str(second) in pipeline("report", events, "--output", report, "--update").stderr
    second.unlink()
    result = pipeline("report", events, "--output", report, "--update")
    assert (result.exit_code, result.stderr) == (1, f"error: {second}: no such file\n")


def test_a_segment_that_is_removed_meanwhile(
    sessions: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zonemta_py.pipeline.events import log as segment_files
    from zonemta_py.pipeline.spark.files import local_files

    paths = write_log(tmp_path / "events")

    def files(*arguments: Any) -> dict[str, int] | None:
        found = local_files(*arguments)
        paths[1].unlink(missing_ok=True)
        return found

    monkeypatch.setattr(segment_files, "local_files", files)
    result = pipeline("report", tmp_path / "events", "--output", tmp_path / "report")
    assert result.exit_code == 1
    assert f"{paths[1]}: No such file or directory" in result.stderr
    assert not sessions
