"""docs/examples/airflow_dag.py: its commands exist, and Airflow loads it where it is installed."""

import ast
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from zonemta_py.cli.pipeline.group import pipeline

ROOT = Path(__file__).parents[2]
DAG = ROOT / "docs" / "examples" / "airflow_dag.py"
PAGE = ROOT / "docs" / "pipeline.md"
TEMPLATE = re.compile(r"\{\{.*?\}\}")  # of Jinja; filled with a day
OPERATORS = {"&&", "||", ";"}


def scripts() -> dict[str, str]:
    """The constants of the example that are commands of a shell."""
    found = {}
    for node in ast.parse(DAG.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            name, value = node.targets[0], node.value.value
            assert isinstance(name, ast.Name)
            if isinstance(value, str) and "zonemta" in value:
                found[name.id] = value
    return found


def jobs(script: str) -> list[list[str]]:
    """The commands of a script that begin with ``zonemta pipeline``, without these two words."""
    commands: list[list[str]] = [[]]
    for word in shlex.split(TEMPLATE.sub("2026-11-24", script)):
        if word in OPERATORS:
            commands.append([])
        else:
            commands[-1].append(word)
    return [words[2:] for words in commands if words[:2] == ["zonemta", "pipeline"]]


JOBS = [job for script in scripts().values() for job in jobs(script)]


def test_the_example_has_the_jobs_of_a_campaign() -> None:
    assert {job[0] for job in JOBS} == {"suppress", "plan", "send", "report", "reconcile", "segment"}
    assert len(JOBS) == len(scripts())


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job[0]))
def test_every_command_is_valid(job: list[str]) -> None:
    """Its options exist, and those that are required are there; the files need not be."""
    command = pipeline.commands[job[0]]
    context = click.Context(command)
    given, rest, _ = command.make_parser(context).parse_args(job[1:])
    assert rest == []
    missing = [each.name for each in command.params if each.required and not given.get(str(each.name))]
    assert missing == []


@pytest.mark.parametrize("job", JOBS, ids=lambda job: str(job[0]))
def test_every_task_may_run_again(job: list[str]) -> None:
    """Output that exists is replaced; a plan is kept, and ``send`` has none, nor ``reconcile`` without ``--output``."""
    command = pipeline.commands[job[0]]
    may_overwrite = any(option.name == "overwrite" for option in command.params)
    output = next((option for option in command.params if option.name == "output"), None)
    has_directory = may_overwrite and output is not None and (output.required or "--output" in job)
    assert ("--overwrite" in job) == (has_directory and job[0] != "plan")
    assert "test -e plans/{{ ds }}/manifest/_SUCCESS ||" in " ".join(scripts()["PLAN"].split())


def test_exit_codes_are_documented() -> None:
    """A row for each job; only jobs that read EVENTS end with 3."""
    section = PAGE.read_text().partition("\n## Airflow\n")[2].partition("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| `")]
    by_name = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(by_name) == set(pipeline.commands) - {"demo"}
    assert all(len(row) == 5 for row in rows)
    reads_events = {
        name
        for name, command in pipeline.commands.items()
        if any(each.name == "events" for each in command.params)
    }
    assert {name for name, row in by_name.items() if row[-1] != "—"} == reads_events


@pytest.mark.skipif(find_spec("airflow") is None, reason="Airflow is not installed")
def test_airflow_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from airflow.dag_processing.dagbag import DagBag  # type: ignore[import-not-found,unused-ignore]

    bag = DagBag(str(DAG))
    assert bag.import_errors == {}
    assert set(bag.dags) == {"newsletter", "newsletter_segments"}
    assert [task.task_id for task in bag.dags["newsletter"].topological_sort()][-1] in ("report", "reconcile")  # fmt: skip
