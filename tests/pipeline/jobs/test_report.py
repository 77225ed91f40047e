"""Reports from segments: complete ones, and those that are kept up to date."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.campaigns import no_progress
from tests.pipeline.segments import delivered, write_segment
from zonemta_py.core.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_torn_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """An error that names the file, not a report with smaller sums."""
    from tests.pipeline.segments import delivered, write_segment
    from zonemta_py.pipeline.jobs.report import ReportRequest, make_report

    path = write_segment(tmp_path / "events", "a", [delivered(seq) for seq in range(2000)])
    path.write_bytes(path.read_bytes()[:400])  # in the first frame
    with pytest.raises(LocalError, match=r"a.jsonl.zst cannot be read: Truncated source"):
        make_report(
            spark, ReportRequest(str(tmp_path / "events"), [], str(tmp_path / "out")), no_progress
        )


def test_no_events(spark: "SparkSession", tmp_path: Path) -> None:
    from zonemta_py.pipeline.jobs.report import ReportRequest, make_report

    for path, problem in (
        (tmp_path / "missing", "no event log here"),
        (tmp_path, "no delivery was attempted"),
    ):
        with pytest.raises(LocalError, match=problem):
            make_report(
                spark, ReportRequest(str(path), [], str(tmp_path / f"out-{problem[:3]}")), no_progress
            )


def test_an_update_equals_a_complete_report(spark: "SparkSession", tmp_path: Path) -> None:
    """An update reads only new segments; its sums are those of a complete report."""
    from zonemta_py.pipeline.jobs.report import ReportRequest, make_report, update_report

    events, output = tmp_path / "events", tmp_path / "report"
    request = ReportRequest(str(events), (), str(output))
    write_segment(events, "a", [delivered(n) for n in range(10)])
    assert update_report(spark, request, None, no_progress)["delivered"] == 10
    write_segment(events, "b", [delivered(n) for n in range(8, 25)])
    sums = update_report(spark, request, None, no_progress)
    assert sums["delivered"] == 25
    assert update_report(spark, request, None, no_progress) == sums
    assert ">25</b>recipients delivered" in (output / "report.html").read_text()
    assert sorted(each.name for each in output.iterdir()) == [
        "anomalies", "attempts", "days", "hours", "lake", "rates", "replies", "report.html",
    ]  # fmt: skip
    complete = make_report(
        spark, ReportRequest(str(events), (), str(tmp_path / "complete")), no_progress
    )
    assert complete == sums


def test_it_updates_until_it_is_interrupted(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is sealed during the run is in the report; KeyboardInterrupt ends the run."""
    from zonemta_py.pipeline.jobs import report

    events, output = tmp_path / "events", tmp_path / "report"
    write_segment(events, "a", [delivered(n) for n in range(10)])
    seen: list[int] = []
    original = report._write

    def write(*args: Any) -> dict[str, Any]:
        sums = original(*args)
        seen.append(sums["delivered"])
        if len(seen) == 1:
            write_segment(events, "b", [delivered(n) for n in range(10, 15)])
        else:
            raise KeyboardInterrupt
        return sums

    monkeypatch.setattr(report, "_write", write)
    request = report.ReportRequest(str(events), (), str(output))
    sums = report.update_report(spark, request, 0.2, no_progress)
    assert seen == [10, 15]
    assert sums["delivered"] == 10
    shutil.rmtree(output / "_next")
