"""Every command that takes EVENTS, with a gap in them: its ``--json`` has the counts, the gap is on standard error, the exit code is 3."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.pipeline.campaigns import plan, write_list
from tests.pipeline.segments import HOUR_MS, accepted, delivered, write_segment
from zonemta_py.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
BEGINS_MS = 1_800_000_000_000
LIMITED = {"event": "deferred", "code": 451, "status": "4.7.0", "reply": "Rate limit exceeded"}
COMMANDS = {
    "report": ("report", "events", "--output", "out"),
    "report --update": ("report", "events", "--update", "--output", "out"),
    "compact": ("compact", "events", "--output", "out"),
    "reconcile": ("reconcile", "plan", "events", "--output", "out"),
    "suppress": ("suppress", "events", "--output", "out"),
    "anomaly": ("anomaly", "events", "--output", "out"),
    "recommend": ("recommend", "events", "--output", "out"),
    "simulate": ("simulate", "events", "--output", "out"),
}

QUARANTINES = dict.fromkeys(("reconcile", "anomaly", "simulate"), "_quarantine")  # beside the rows


@pytest.fixture(scope="module")
def directory(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, and events of 30 hours, in the last of which all is deferred; the event 1800 is missing."""
    found = tmp_path_factory.mktemp("damaged")
    events = [
        delivered(1 + n, time_ms=BEGINS_MS + n // 60 * HOUR_MS + n, **(LIMITED if n >= 1740 else {}))
        for n in range(1799)
    ]
    write_segment(found / "events", "a", events)
    write_segment(found / "events", "b", [accepted(1801, ["u@x.example"])])
    plan(spark, write_list(found / "list.csv", [["u@x.example", "U"]]), found / "plan")
    return found


def documented_keys(command: str) -> set[str]:
    """The keys that docs/pipeline.md names in the table of what ``--json`` prints, some by the table of a report or job."""
    from tests.pipeline.test_schema_page import ROWS
    from zonemta_py.pipeline.report.outcomes import OUTCOMES

    section = PAGE.read_text().partition("\n## JSON\n")[2].partition("\n## ")[0]
    [row] = [line for line in section.splitlines() if line.startswith(f"| `{command}`")]
    keys = set(re.findall(r"`(\w+)`", row.rpartition(" | ")[2]))
    if command == "report":
        keys = keys - {"dimension", "value"} | {each.name for each in ROWS["report/rates"][2:]}
    elif command in ("anomaly", "simulate"):
        keys |= {each.name for each in ROWS[command]}
    elif command == "reconcile":
        keys |= set(OUTCOMES)
    return keys


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("kept_session")
def test_the_damage_is_counted(directory: Path, tmp_path: Path, name: str) -> None:
    command, *words = COMMANDS[name]
    paths = {"events": directory / "events", "plan": directory / "plan", "out": tmp_path / "out"}
    arguments = [str(paths.get(word, word)) for word in words]
    result = CliRunner().invoke(main, ["pipeline", command, *arguments, "--json"])
    assert result.exit_code == 3, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines
    for line in lines:
        assert (line["damaged_segments"], line["gaps"]) == (0, 1)
        assert set(line) == documented_keys(command)
    assert "warning: " in result.stderr
    assert "of node abcdef are missing" in result.stderr
    if name in ("suppress", "recommend"):
        return  # their output is a file
    directory = tmp_path / "out" / QUARANTINES.get(name, "quarantine")
    [gap] = map(json.loads, (directory / "segments.jsonl").read_text().splitlines())
    assert gap["file"] is None
    assert "of node abcdef are missing" in gap["reason"]
