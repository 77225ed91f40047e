"""docs/pipeline.md from its first command to its last, in an empty directory, as its reader would do it."""

import mailbox
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.kit.deadlines import until_blocking
from tests.pipeline.campaigns import suppressed
from tests.pipeline.feedback.test_dsn import bounce
from zonemta_py.bench.process import CommandProcess, free_port
from zonemta_py.cli.main import main
from zonemta_py.events.segment_reading import read_segment, sealed_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"
ELSEWHERE = "pip install"  # of the first block, which the tests of the package run
MAILBOX = "/var/mail/bounces"


def blocks(text: str) -> list[str]:
    """The blocks of commands, with what stands for the options of a plan in its place."""
    options = re.search(r"\(`…` is `(.+?)`\.\)", text)
    assert options
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block.replace("…", options[1]) for block in found if not block.startswith(ELSEWHERE)]


class Reader:
    """Runs the commands; those of the pipeline in the session of all tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outputs: dict[str, str] = {}  # by command
        self._background: list[CommandProcess] = []

    def run(self, block: str) -> None:
        script: list[str] = []  # other lines, up to the next command of the pipeline
        for line in block.splitlines():
            words = line.split()
            if words[:2] == ["zonemta", "pipeline"]:
                self._shell(script)
                self._pipeline(shlex.split(line, comments=True)[1:])
            elif words[:1] == ["zonemta"]:
                self._shell(script)
                self._start(shlex.split(line, comments=True)[1:])
            elif words[:1] == ["kill"]:
                self.close()
            else:
                script.append(line)
        self._shell(script)

    def _shell(self, script: list[str]) -> None:
        subprocess.run(["bash", "-eu", "-c", "\n".join(script)], cwd=self.directory, check=True)
        script.clear()

    def _pipeline(self, arguments: list[str]) -> None:
        result = CliRunner().invoke(main, self._absolute(arguments))
        assert result.exit_code == 0, (arguments, result.output)
        self.outputs[" ".join(arguments)] = result.stdout
        if arguments[1] == "send":
            until_blocking(self._is_delivered, "the relay's segments")

    def _is_delivered(self) -> bool:
        segments = sealed_segments(self.directory / "events")
        kinds = [event["event"] for path in segments for event in read_segment(path)]
        return kinds.count("delivered") + kinds.count("bounced") >= 400

    def _absolute(self, words: list[str]) -> list[str]:
        """Java, and programs in the background, were started elsewhere."""
        return [
            str(self.directory / each)
            if before == "--output" or (self.directory / each).exists()
            else each
            for before, each in zip(["", *words], words, strict=False)
        ]

    def _start(self, words: list[str]) -> None:
        assert words[-1] == "&"
        process = CommandProcess(self._absolute(words[:-1]), self.directory / f"{words[0]}.log")
        self._background.append(process)
        if words[0] == "serve":
            process.wait_ready()
        else:  # the counts of a sink are on its standard output
            until_blocking(lambda: "ready" in process.log.read_text(), "the receiver")

    def close(self) -> None:
        while self._background:
            self._background.pop().stop()


@pytest.fixture
def reader(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    spark.sql(f"CREATE SCHEMA mail LOCATION '{tmp_path}/warehouse'")
    found = Reader(tmp_path)
    yield found
    found.close()
    spark.sql("DROP SCHEMA mail CASCADE")


@pytest.mark.usefixtures("kept_session")
def test_every_command(reader: Reader) -> None:
    text = PAGE.read_text()
    relay, sink = free_port(), free_port()
    replaced = {
        "2525": str(relay), "2526": str(sink), MAILBOX: "mailbox", "lake.mail": "mail",
    }  # fmt: skip
    for before, after in replaced.items():
        assert before in text
        text = text.replace(before, after)
    box = mailbox.mbox(reader.directory / "mailbox")
    box.add(bounce("ann7@example.org"))
    box.close()
    for block in blocks(text):
        reader.run(block)
    ran = {" ".join(each.split()[1:2]) for each in reader.outputs}
    assert ran == {
        "plan", "send", "report", "reconcile", "suppress", "segment", "dsn", "compact", "simulate",
    }  # fmt: skip
    assert {
        key for key in suppressed((reader.directory / "bounced.txt").read_text()) if "gone" in key
    } == {f"gone{n}@example.net" for n in range(1, 201)}
    assert "ann7@example.org" in suppressed((reader.directory / "bounced.txt").read_text()), (
        "a report by mail"
    )


@pytest.mark.usefixtures("kept_session")
def test_the_demo(tmp_path: Path) -> None:
    """The first command of the page, with a smaller list."""
    arguments = ["pipeline", "demo", "--recipients", "300", "--keep", str(tmp_path / "demo")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert f"the report is {tmp_path}/demo/report/report.html" in result.output
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
