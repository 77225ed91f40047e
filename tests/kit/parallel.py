"""``pytest -p tests.kit.parallel --in-parallel DIRECTORY …``: the tests below DIRECTORY, or of one file, run in a pytest of their own.

The option may be repeated, also for one below another; AT_ONCE of them run at the same time, in their order. The reports become reports of
the first process, after its own tests: one list of failures, one closing line.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

AT_ONCE = 5  # beside the first process: most wait for peers and processes half of the time


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the first process, and that of the second."""
    parser.addoption(
        "--in-parallel",
        type=Path,
        metavar="DIRECTORY",
        action="append",
        default=[],
        help="run its tests in another process",
    )
    parser.addoption("--reports-to", type=Path, help="of the other process: where its reports go")


def pytest_configure(config: pytest.Config) -> None:
    """Register the part of this process."""
    if config.option.reports_to:
        config.pluginmanager.register(Sender(config, config.option.reports_to))
    elif config.option.in_parallel:
        config.pluginmanager.register(
            Receiver(config, [path.resolve() for path in config.option.in_parallel])
        )


class Sender:
    """In another process: writes every report as a line of JSON."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._file = path.open("w", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended."""
        self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module could not be collected, or was skipped as a whole."""
        if not report.passed:
            self._write(report)

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data, default=str) + "\n")


class Other:
    """A process that runs the tests of ``directory``, without those of ``others``."""

    def __init__(self, directory: Path, others: Sequence[Path], scratch: Path) -> None:
        self.directory = directory
        self.reports = scratch / f"{directory.name}.reports"
        self._output = scratch / f"{directory.name}.output"
        self._command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.kit.parallel",
            f"--reports-to={self.reports}",
            *(f"--ignore={each}" for each in others if directory in each.parents),
            str(directory),
        ]
        self._cwd, self._environment = Path.cwd(), dict(os.environ)  # a test may change both meanwhile
        self._starting = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def run(self) -> int:
        """Run it to its end, unless it was killed before; the exit code."""
        with self._starting:
            if self._is_killed:
                return pytest.ExitCode.INTERRUPTED
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    self._command, stdout=output, stderr=output, cwd=self._cwd, env=self._environment
                )
        return self._process.wait()

    def kill(self) -> None:
        """End the process if it runs; else it will not start."""
        with self._starting:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def output(self) -> str:
        """What it has printed."""
        return (
            self._output.read_text(errors="replace") if self._output.exists() else "it was not started"
        )


class Receiver:
    """In the first process: leaves the directories out, starts the other processes and reads their reports."""

    def __init__(self, config: pytest.Config, directories: Sequence[Path]) -> None:
        self._config = config
        self._directories = directories
        self._is_interrupted = False

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the tests of the other processes."""
        return True if collection_path in self._directories else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run the other processes during the tests of this one."""
        if session.config.option.collectonly:
            return (yield)
        with tempfile.TemporaryDirectory() as name:
            others = [Other(directory, self._directories, Path(name)) for directory in self._directories]
            with ThreadPoolExecutor(AT_ONCE) as starting:
                running = [starting.submit(self._run, other) for other in others]
                try:
                    result = yield
                    for other, code in zip(others, running, strict=True):
                        self._finish(session, other, code.result())
                finally:
                    starting.shutdown(wait=False, cancel_futures=True)
                    for other in others:
                        other.kill()
        return result

    def _run(self, other: Other) -> int:
        """Run ``other``, unless a user has interrupted one that ran before."""
        if self._is_interrupted:
            return pytest.ExitCode.INTERRUPTED
        code = other.run()
        if code in (pytest.ExitCode.INTERRUPTED, -signal.SIGINT):
            self._is_interrupted = True
        return code

    def pytest_keyboard_interrupt(self) -> None:
        """No other part is to be started."""
        self._is_interrupted = True

    def _finish(self, session: pytest.Session, other: Other, code: int) -> None:
        """Report what ``other`` reported, and that it did not end well."""
        if not self._replay(session, other.reports) and code != pytest.ExitCode.OK:
            text = f"its process ended with {code}:\n{other.output()}"
            broken = pytest.CollectReport(str(other.directory), "failed", text, [])
            self._config.hook.pytest_collectreport(report=broken)

    def _replay(self, session: pytest.Session, path: Path) -> bool:
        """Report what another process reported; whether anything failed."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        reports = [self._report(json.loads(line)) for line in lines]
        session.testscollected += len({report.nodeid for report in reports})
        hook = self._config.hook
        for report in reports:
            if isinstance(report, pytest.TestReport):
                if report.when == "setup":
                    hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
                hook.pytest_runtest_logreport(report=report)
            else:
                hook.pytest_collectreport(report=report)
        return any(report.failed for report in reports)

    def _report(self, data: dict[str, Any]) -> pytest.TestReport | pytest.CollectReport:
        report: pytest.TestReport | pytest.CollectReport
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        if report.skipped and isinstance(report.longrepr, list):
            path, line, reason = report.longrepr  # JSON has no tuples
            report.longrepr = (path, line, reason)
        return report
