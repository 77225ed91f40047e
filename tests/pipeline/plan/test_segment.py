"""Engagement segments of a list: each address has one, the sums are right, and ``plan`` takes what was written."""

import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.pipeline.campaigns import PERSONAL, no_progress, plan, write_list
from zonemta_py.cli.main import main
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.pipeline.plan.segment import EngagementPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.plan.segment import SegmentCounts

POLICY = EngagementPolicy(date(2026, 11, 24))
LIST = [
    ["one@x.example", "One", "2020-01-01"], ["ninety@x.example", "Ninety", ""], ["half@x.example", "Half", ""],
    ["lapsed@x.example", "Lapsed", ""], ["old@x.example", "Old", "2026-11-20"], ["never@x.example", "Never", "long ago"],
    ["joined@x.example", "Joined", "2026-11-20"], ["ONE@x.example", "again", ""], ["wrong", "W", ""],
]  # fmt: skip
OPENS = [
    ["One@X.example", "2026-11-20T10:00:00Z"], ["one@x.example", "2026-01-01"], ["ninety@x.example", "1789000000"],
    ["half@x.example", "2026-06-15 08:00:00"], ["lapsed@x.example", "1770000000000"], ["old@x.example", "2025-01-01"],
    ["stranger@x.example", "2026-11-01"], ["never@x.example", "soon"], ["not an address", "2026-11-01"],
    ["never@x.example", "2026-11-25"],
]  # fmt: skip


def written(directory: Path) -> tuple[Path, Path]:
    """The table of opens and clicks, and the list."""
    return (
        write_list(directory / "opens.csv", OPENS, ("address", "time")),
        write_list(directory / "list.csv", LIST, ("email", "name", "joined")),
    )


def run(spark: "SparkSession", directory: Path, **changes: Any) -> "SegmentCounts":
    from zonemta_py.pipeline.plan.segment import SegmentRequest, make_segments

    settings: dict[str, Any] = {
        "engagement": str(directory / "opens.csv"), "source": str(directory / "list.csv"), "output": str(directory / "out"),
        "policy": POLICY, "joined_column": "joined", **changes,
    }  # fmt: skip
    return make_segments(spark, SegmentRequest(**settings), no_progress)


def members(spark: "SparkSession", output: Path) -> dict[str, str]:
    return {row["address"]: row["segment"] for row in spark.read.parquet(f"{output}/segments").collect()}


def test_each_address_has_one_segment(spark: "SparkSession", tmp_path: Path) -> None:
    written(tmp_path)
    counts = run(spark, tmp_path)
    assert members(spark, tmp_path / "out") == {
        "one@x.example": "active_30", "ninety@x.example": "active_90", "half@x.example": "active_180",
        "lapsed@x.example": "lapsed", "old@x.example": "sunset", "never@x.example": "sunset", "joined@x.example": "new",
    }  # fmt: skip
    assert (counts.input, counts.rejected, counts.duplicate, counts.bad_joined) == (9, 1, 1, 1)
    assert counts.segments == {
        "active_30": 1,
        "active_90": 1,
        "active_180": 1,
        "new": 1,
        "lapsed": 1,
        "sunset": 2,
    }
    found = counts.engagement
    assert found.rows == found.used + found.bad_times + found.bad_addresses + found.later == len(OPENS)
    assert (found.bad_times, found.bad_addresses, found.later, found.unlisted) == (1, 1, 1, 1)
    table = spark.read.parquet(f"{tmp_path}/out/segments")
    assert table.columns == ["address", "last_active_ms", "email", "name", "joined", "segment"]
    left_out = spark.read.parquet(f"{tmp_path}/out/left_out").orderBy("kind").collect()
    assert [tuple(row)[:2] for row in left_out] == [
        ("duplicate", "ONE@x.example"),
        ("rejected", "wrong"),
    ]
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["left_out", "segments", "sunset.csv"]  # fmt: skip


def test_plan_takes_segments_and_the_sunset_file(spark: "SparkSession", tmp_path: Path) -> None:
    """A partition is a list with the merge fields of the first one; sunset.csv leaves out exactly the sunset segment."""
    _, listed = written(tmp_path)
    run(spark, tmp_path)
    lines = (tmp_path / "out" / "sunset.csv").read_text().splitlines()
    assert lines[1:] == [
        "entry,reason,until",
        '"never@x.example","sunset: never active",""',
        '"old@x.example","sunset: last active 2025-01-01",""',
    ]
    partition = tmp_path / "out" / "segments" / "segment=active_30"
    manifest = plan(spark, partition, tmp_path / "plan", message=PERSONAL)
    assert (manifest.input, manifest.planned) == (1, 1)
    envelope = spark.read.parquet(f"{tmp_path}/plan/envelopes").collect()[0]
    assert envelope["recipients"][0].asDict() == {"address": "one@x.example", "fields": {"name": "One"}}
    suppress = [f"{tmp_path}/out/sunset.csv"]
    manifest = plan(spark, listed, tmp_path / "whole", suppress=suppress)
    assert (manifest.planned, manifest.suppressed, manifest.rejected, manifest.duplicate) == (5, 2, 1, 1)
    reasons = spark.read.parquet(f"{tmp_path}/whole/left_out").where("kind = 'suppressed'").collect()
    assert {row["reason"] for row in reasons} == {"sunset: never active", "sunset: last active 2025-01-01"}  # fmt: skip


def test_a_table_for_each_segment(spark: "SparkSession", tmp_path: Path) -> None:
    """``plan`` takes it as it takes a directory; another run replaces all of them, also by empty ones."""
    written(tmp_path)
    spark.sql(f"CREATE SCHEMA june LOCATION '{tmp_path}/warehouse'")
    try:
        counts = run(spark, tmp_path, tables="june")
        rows = {name: spark.table(f"june.{name}").count() for name in POLICY.names}
        assert rows == counts.segments
        assert spark.table("june.new").columns == [
            "address",
            "last_active_ms",
            "email",
            "name",
            "joined",
        ]
        manifest = plan(spark, "table:june.active_30", tmp_path / "plan", message=PERSONAL)
        assert (manifest.input, manifest.planned) == (1, 1)
        counts = run(spark, tmp_path, tables="june", joined_column=None, overwrite=True)
        assert (counts.segments["new"], spark.table("june.new").count()) == (0, 0)
        assert spark.table("june.sunset").count() == counts.segments["sunset"] == 3
    finally:
        spark.sql("DROP SCHEMA june CASCADE")


def test_a_run_is_repeated(spark: "SparkSession", tmp_path: Path) -> None:
    """What a killed run left is replaced, a complete output only with --overwrite, and other files never."""
    written(tmp_path)
    (tmp_path / "out" / "segments" / "segment=old").mkdir(parents=True)
    first = run(spark, tmp_path)
    assert set(members(spark, tmp_path / "out").values()) == set(POLICY.names)
    with pytest.raises(
        LocalError, match="exists; choose another directory, or replace it with --overwrite"
    ):
        run(spark, tmp_path)
    assert run(spark, tmp_path, overwrite=True) == first
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(LocalError, match=r"contains mine.txt"):
        run(spark, tmp_path, overwrite=True)


def test_tables(spark: "SparkSession", tmp_path: Path) -> None:
    """A partitioned table of opens, and a list that is the output of an earlier run: its segments are replaced."""
    written(tmp_path)
    opens = spark.createDataFrame(
        [("one@x.example", 1_763_000_000, "2025-11-13")], "recipient string, opened long, day string"
    )
    opens.write.partitionBy("day").parquet(str(tmp_path / "opens"))
    run(spark, tmp_path)
    changes = {
        "source": f"{tmp_path}/out/segments",
        "engagement": f"{tmp_path}/opens",
        "email_column": "recipient",
    }
    counts = run(spark, tmp_path, **changes, output=str(tmp_path / "next"), time_column="opened")
    assert counts.segments == {
        "active_30": 0,
        "active_90": 0,
        "active_180": 0,
        "new": 2,
        "lapsed": 0,
        "sunset": 5,
    }
    table = spark.read.parquet(f"{tmp_path}/next/segments")
    assert table.columns == ["address", "last_active_ms", "email", "name", "joined", "segment"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"time_column": "when"}, "opens.csv: no column when; columns: address, time"),
        ({"joined_column": "since"}, "list.csv: no column since; columns: email, name, joined"),
        ({"email_column": "mail"}, "list.csv: no column mail"),
        ({"policy": EngagementPolicy(date(2020, 1, 1))}, "whole list would be in the sunset segment"),
    ],
)
def test_what_is_refused(
    spark: "SparkSession", tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    written(tmp_path)
    with pytest.raises(LocalError, match=problem):
        run(spark, tmp_path, **changes)
    assert not (tmp_path / "out" / "sunset.csv").exists()


def test_columns_of_any_name(spark: "SparkSession", tmp_path: Path) -> None:
    """They are kept as they are; the address column may have another name in each table."""
    head = ("#id", "user.mail", "first name, (given)", "a`b", "Segment")
    listed = write_list(tmp_path / "list.csv", [["7", "a@x.example", "A", "q", "old"]], head)
    write_list(tmp_path / "opens.csv", [["a@x.example", "2026-11-20"]], ("who", "when.at"))
    changes = {"source": str(listed), "joined_column": None, "time_column": "when.at"}
    with pytest.raises(LocalError, match=r"opens.csv: no column email or address or recipient"):
        run(spark, tmp_path, **changes, email_column="user.mail")
    write_list(tmp_path / "opens.csv", [["a@x.example", "2026-11-20"]], ("email", "when.at"))
    output = f"file://{tmp_path}/url"
    counts = run(spark, tmp_path, **changes, email_column="user.mail", output=output)
    assert counts.segments["active_30"] == 1
    table = spark.read.parquet(f"{output}/segments")
    assert table.columns == ["address", "last_active_ms", *head[:-1], "segment"]
    assert tuple(table.collect()[0])[2:] == ("7", "a@x.example", "A", "q", "active_30")
    assert "entry,reason,until\n" in (tmp_path / "url" / "sunset.csv").read_text(), "written by Hadoop"
    assert (
        run(spark, tmp_path, **changes, email_column="user.mail", output=output, overwrite=True)
        == counts
    )


def test_a_list_without_addresses(spark: "SparkSession", tmp_path: Path) -> None:
    written(tmp_path)
    listed = write_list(tmp_path / "bad.csv", [["wrong", ""]])
    counts = run(spark, tmp_path, source=str(listed), joined_column=None)
    assert (counts.input, counts.rejected, sum(counts.segments.values())) == (1, 1, 0)
    with pytest.raises(LocalError, match="the list is empty"):
        run(spark, tmp_path, source=str(write_list(listed, [])), joined_column=None, overwrite=True)


def test_another_column_address(spark: "SparkSession", tmp_path: Path) -> None:
    """A postal address would be replaced by that of the mailbox."""
    write_list(tmp_path / "list.csv", [["a@x.example", "Main Street 1"]], ("email", "address"))
    write_list(tmp_path / "opens.csv", OPENS, ("address", "time"))
    with pytest.raises(LocalError, match="a column 'address' beside the address column 'email'"):
        run(spark, tmp_path, joined_column=None)


def test_the_command(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options reach the job; its JSON has every sum."""
    monkeypatch.setattr("zonemta_py.pipeline.spark.session.open_session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    opens, listed = written(tmp_path)
    arguments = [
        "pipeline",
        "segment",
        str(opens),
        "--list",
        str(listed),
        "--output",
        str(tmp_path / "out"),
    ]
    more = ["--active-days", "7", "--active-days", "30", "--sunset-days", "60", "--as-of", "2026-11-24"]
    result = CliRunner().invoke(main, [*arguments, *more, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["as_of"] == "2026-11-24"
    assert found["segments"] == {"active_7": 1, "active_30": 0, "new": 0, "lapsed": 0, "sunset": 6}
    assert found["engagement"]["bad_times"] == 1
    result = CliRunner().invoke(main, [*arguments, *more, "--overwrite"])
    assert result.exit_code == 0
    assert "           1 active_7\n" in result.stdout
    assert "ignored: 1 opens and clicks without a time that can be read" in result.stderr
    result = CliRunner().invoke(main, [*arguments[:2], str(tmp_path / "none.csv"), *arguments[3:]])
    assert (result.exit_code, "none.csv: no such file" in result.stderr) == (2, True)
    result = CliRunner().invoke(main, [*arguments, "--sunset-days", "90"])
    assert result.exit_code == 2
    assert "sunset after 90 days, but 180 days are active" in result.stderr
    with pytest.raises(ConfigError):
        EngagementPolicy(date(2026, 1, 1), (10,), 5)
