"""The options and help texts of ``zonemta pipeline``; its jobs are tested without the command line."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from zonemta_py.cli.main import main
from zonemta_py.cli.pipeline.common import PATHS, _with_absolute_paths
from zonemta_py.cli.pipeline.group import pipeline
from zonemta_py.cli.pipeline.plan import _checked_caps
from zonemta_py.cli.pipeline.send import _submit_values
from zonemta_py.cli.pipeline.simulate import CHANGES_MAX, PER_SECOND, _print_prediction
from zonemta_py.config.endpoints import host_port
from zonemta_py.config.schema import Config

COMMANDS = sorted(pipeline.commands)
PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str) -> None:
    result = CliRunner().invoke(main, ["pipeline", name, "--help"])
    assert result.exit_code == 0
    assert f"zonemta pipeline {name}" in result.output
    assert "Example" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_output_says_what_it_is(name: str) -> None:
    """``--output`` is a FILE, a DIRECTORY, or a table besides, and every option has a help text."""
    kinds = dict.fromkeys(("recommend", "suppress"), "FILE")
    kinds |= dict.fromkeys(("dsn", "reconcile", "anomaly", "simulate"), "DIRECTORY|table:NAME")
    command = pipeline.commands[name]
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            if option.name == "output":
                metavar = option.make_metavar(click.Context(command))
                assert metavar == kinds.get(name, "DIRECTORY")


def test_json_is_documented() -> None:
    """Every command has ``--json`` and a row in docs/pipeline.md, with the keys of what it prints."""
    pytest.importorskip("pyspark")
    from zonemta_py.pipeline.feedback import reports
    from zonemta_py.pipeline.plan import segment
    from zonemta_py.pipeline.send import job

    section = PAGE.read_text().partition("\n## JSON\n")[2].partition("\n## ")[0]
    cells = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    rows = {name: row for row in cells for name in re.findall(r"`(\w+)`", row[0])}
    assert sorted(rows) == COMMANDS
    assert all(any(each.name == "as_json" for each in pipeline.commands[name].params) for name in COMMANDS)  # fmt: skip
    printed = {
        "send": (job.SendCounts,), "segment": (segment.SegmentCounts, segment.EngagementCounts), "dsn": (reports.DsnCounts,),
    }  # fmt: skip
    for name, classes in printed.items():
        keys = {field.name for each in classes for field in fields(each)}
        assert keys == set(re.findall(r"`(\w+)`", rows[name][2])), name


@pytest.mark.parametrize("name", COMMANDS)
def test_paths_are_absolute_over_spark_connect(name: str) -> None:
    """Every parameter that names a list, a plan, events or a directory of Spark is in PATHS."""
    named = {
        each.name
        for each in pipeline.commands[name].params
        if each.metavar in ("LIST", "SOURCE", "PLAN", "EVENTS", "MAIL...", "ENGAGEMENT", "DIRECTORY")
        and not isinstance(each.type, click.Path)
    }
    assert named <= set(PATHS)


def test_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.chdir(tmp_path)
    values = {
        "source": "table:people",
        "plans": ("a", "/b", "s3a://c"),
        "output": Path("x"),
        "reports": (),
        "campaign": "june",
    }
    assert _with_absolute_paths("local[*]", values) is values
    assert _with_absolute_paths("sc://host", values) == {
        **values,
        "plans": (f"{tmp_path}/a", "/b", "s3a://c"),
    }


def submit_values(**changes: Any) -> dict[str, Any]:
    return _submit_values(
        relays=(host_port("127.0.0.1:25"),), connections=8, user=None, password_file=None, **changes
    )  # fmt: skip


def test_connections() -> None:
    assert submit_values()["connections"] == 8
    assert submit_values()["relays"] == ("127.0.0.1:25",)


@pytest.mark.parametrize(
    ("text", "per_s"), [("100", 100.0), ("2.5", 2.5), ("100/s", 100.0), ("60/m", 1.0)]
)
def test_rates(text: str, per_s: float) -> None:
    assert PER_SECOND.convert(text, None, None) == pytest.approx(per_s)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "fast", "0/s"])
def test_bad_rates(text: str) -> None:
    with pytest.raises(click.BadParameter, match="a rate"):
        PER_SECOND.convert(text, None, None)


def test_a_plan_of_a_missing_list(tmp_path: Path) -> None:
    """Wrong usage is found before Spark starts."""
    pytest.importorskip("pyspark")
    message = tmp_path / "m.eml"
    message.write_bytes(b"Subject: x\n\nhi\n")
    result = CliRunner().invoke(
        main,
        ["pipeline", "plan", str(tmp_path / "list.csv"), "--message", str(message), "--from", "a@x.example",
         "--campaign", "june", "--output", str(tmp_path / "plan")],
    )  # fmt: skip
    assert result.exit_code == 2
    assert "list.csv: no such file" in result.output


def test_simulate_prints_what_bound_each_path(capsys: pytest.CaptureFixture[str]) -> None:
    """Paths without a limit, a refusal or a change are left out; of many changes the first are printed."""
    path = {
        "provider": "big", "address": "192.0.2.1", "transactions": 1200, "recipients": 1300, "refused": 7,
        "minute_max": 120, "per_s": 2.0, "wait_max_s": 600.4, "limited_s": {"provider_rate": 580.0, "warmup": 0.2},
        "changes": [
            {"time_ms": 1_800_000_000_000, "what": "pace", "from": "full", "to": "1 sessions, 60/m", "cause": "blocked"}
        ] * (CHANGES_MAX + 2),
    }  # fmt: skip
    idle = path | {"provider": "calm", "refused": 0, "limited_s": {}, "changes": []}
    counts = ("delivered", "bounced", "expired", "held", "deferrals", "backlog_peak")
    row = dict.fromkeys(counts, 5) | {
        "zone": "default", "settings": "", "completed_s": 600.0, "p50_s": None, "limited_by_rate_s": 0.0,
        "limited_by_connections_s": 0.0, "limited_by_connections_per_domain_s": 0.0, "paths": [idle, path],
    }  # fmt: skip
    _print_prediction(row)
    printed = capsys.readouterr().out
    assert "calm" not in printed
    assert (
        "big from 192.0.2.1: 1,200 messages, 2.0/s, at most 120 in a minute, waited up to 600 s"
        in printed
    )
    assert "7 of 1,300 recipients refused or deferred because of us" in printed
    assert "limited by provider_rate for 580 s" in printed
    assert "warmup" not in printed
    assert printed.count("2027-01-15 08:00:00 pace: full → 1 sessions, 60/m: blocked") == CHANGES_MAX
    assert "and 2 changes more" in printed


def test_simulate_reads_the_files_of_the_configuration(tmp_path: Path) -> None:
    """A bad one is wrong usage, with its key and what is expected there."""
    (tmp_path / "providers.yaml").write_text("providers: {big: {limits: {rate: [2/s]}}}")
    (tmp_path / "relay.yaml").write_text("providers: {file: providers.yaml}")
    command = ["simulate", str(tmp_path), "-c", str(tmp_path / "relay.yaml")]
    found = CliRunner().invoke(pipeline, command)
    assert found.exit_code == 2, found.output
    assert "providers.big: mx, names of hosts, or domains are needed" in found.output


def test_a_list_on_the_web(tmp_path: Path) -> None:
    """Found before Spark starts, with what to do."""
    (tmp_path / "letter.eml").write_text("From: x\n")
    command = ["plan", "https://127.0.0.1:1/list.csv", "--message", str(tmp_path / "letter.eml")]
    command += ["--from", "s@x.example", "--campaign", "june", "--output", str(tmp_path / "plan")]
    found = CliRunner().invoke(pipeline, command)
    assert found.exit_code == 2, found.output
    assert "list.csv: found a web address, expected a file" in found.output


@pytest.mark.parametrize(
    ("cap", "problem"),
    [
        ("gmail.com=5", "found no such provider; expected google=5"),
        ("Google=5", "found no such provider; expected google=5"),
        ("gogle=5", "found 'gogle': the table has no such provider"),
    ],
)
def test_a_cap_that_would_cap_nothing(tmp_path: Path, cap: str, problem: str) -> None:
    """A domain of a provider, its name in upper case, or none; found before Spark starts."""
    for name in ("list.csv", "letter.eml"):
        (tmp_path / name).write_text("email\nann@gmail.com\n")
    command = ["plan", str(tmp_path / "list.csv"), "--message", str(tmp_path / "letter.eml")]
    command += ["--from", "s@x.example", "--campaign", "june", "--output", str(tmp_path / "plan")]
    found = CliRunner().invoke(pipeline, [*command, "--cap-per-day", cap])
    assert found.exit_code == 2, found.output
    assert problem in found.output


def test_the_cap_of_a_domain_in_another_alphabet() -> None:
    assert _checked_caps({"b\u00fccher.example": 2}, Config()) == {"xn--bcher-kva.example": 2}


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("compact", "events/lake"),
        ("report", "events"),
        ("anomaly", "events/./a"),
        ("suppress", "events/s.csv"),
    ],
)
def test_an_output_in_the_event_log(tmp_path: Path, command: str, output: str) -> None:
    (tmp_path / "events").mkdir()
    found = CliRunner().invoke(
        pipeline, [command, str(tmp_path / "events"), "--output", str(tmp_path / output)]
    )
    assert (found.exit_code, "is in the event log" in found.output) == (2, True), found.output


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--scope", "a"), "--scope needs --suppress"),
        (("--campaign", " "), "--campaign '': expected a name"),
        (
            ("--cap-per-day", "google=1", "--cap-per-day", "google=2"),
            "'google=2': google is given twice",
        ),
        (("--option", "sep=;", "--option", "sep=,"), "'sep=,': sep is given twice"),
    ],
)
def test_options_of_a_plan_that_say_nothing(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    """An option is used, or it is an error; before Spark starts."""
    pytest.importorskip("pyspark")
    for name, text in (("list.csv", "email\na@x.example\n"), ("letter.eml", "Subject: x\n\nx\n")):
        (tmp_path / name).write_text(text)
    message, output = str(tmp_path / "letter.eml"), str(tmp_path / "plan")
    arguments = ["plan", str(tmp_path / "list.csv"), "--message", message, "--from", "n@example.com",
                 "--campaign", "june", "--output", output, *options]  # fmt: skip
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    assert (result.exit_code, problem in result.output) == (2, True), result.output
