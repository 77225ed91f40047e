"""``pytest -p tests.kit.parallel --in-parallel DIRECTORY``: the tests below DIRECTORY run in a second pytest.

Their reports become reports of the first one, after its own tests: one list of failures, one closing line.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the first process, and that of the second."""
    parser.addoption(
        "--in-parallel", type=Path, metavar="DIRECTORY", help="run its tests in a second process"
    )
    parser.addoption("--reports-to", type=Path, help="of the second process: where its reports go")


def pytest_configure(config: pytest.Config) -> None:
    """Register the part of this process."""
    if config.option.reports_to:
        config.pluginmanager.register(Sender(config, config.option.reports_to))
    elif config.option.in_parallel:
        config.pluginmanager.register(Receiver(config, config.option.in_parallel.resolve()))


class Sender:
    """In the second process: writes every report as a line of JSON."""

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


class Receiver:
    """In the first process: leaves the directory out, starts the second process and reads its reports."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._directory = directory

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the tests of the other process."""
        return True if collection_path == self._directory else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run the second process during the tests of this one."""
        if session.config.option.collectonly:
            return (yield)
        with tempfile.TemporaryDirectory() as name, (Path(name) / "output").open("w+b") as output:
            reports = Path(name) / "reports"
            command = [
                "-m",
                "pytest",
                "-p",
                "tests.kit.parallel",
                f"--reports-to={reports}",
                str(self._directory),
            ]
            process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output)
            try:
                result = yield
                code = process.wait()
            finally:
                process.kill()
                process.wait()
            failed = self._replay(session, reports)
            if code != pytest.ExitCode.OK and not failed:
                output.seek(0)
                text = f"its process ended with {code}:\n{output.read().decode(errors='replace')}"
                broken = pytest.CollectReport(str(self._directory), "failed", text, [])
                self._config.hook.pytest_collectreport(report=broken)
        return result

    def _replay(self, session: pytest.Session, path: Path) -> bool:
        """Report what the second process reported; whether anything failed."""
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
