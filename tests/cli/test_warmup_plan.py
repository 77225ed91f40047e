"""``zonemta warmup plan``: the file that it writes is one that ``warmup.file`` may name."""

from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zonemta_py.cli.main import main
from zonemta_py.config.warmup import WarmupSchedule, read_warmups

PLAN = ["--address", "203.0.113.7", "--begins", "2026-12-01", "--target", "1000"]


def zonemta(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["warmup", *map(str, arguments)])


def test_a_plan_is_a_warmup_file(tmp_path: Path) -> None:
    """On standard output or in a file; the table with the sums goes to standard error."""
    printed = zonemta("plan", *PLAN, "--growth", "2")
    assert printed.exit_code == 0, printed.output
    (tmp_path / "printed.yaml").write_text(printed.stdout)
    daily = (200, 400, 800, 1000)
    expected = WarmupSchedule("203.0.113.7", date(2026, 12, 1), daily)
    assert read_warmups(tmp_path / "printed.yaml") == [expected]
    *_, last = printed.stderr.splitlines()
    assert last.split() == ["4", "2026-12-04", "1,000", "2,400"]
    written = tmp_path / "written.yaml"
    quiet = zonemta("plan", *PLAN, "--first", 600, "--provider", "google", "-o", written)
    assert (quiet.exit_code, quiet.stdout) == (0, "")
    (entry,) = read_warmups(written)
    assert (entry.daily, entry.provider) == ((600, 960, 1000), "google")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--address", "x", *PLAN[2:]], "--address: 'x' does not appear to be an IPv4 or IPv6 address"),
        ([*PLAN, "--first", "2000"], "--first 2000 is more than --target 1000"),
        ([*PLAN, "--growth", "1"], "--growth"),
        ([*PLAN[:3], "tomorrow", *PLAN[4:]], "--begins"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    result = zonemta("plan", *arguments)
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_before_the_first_start(tmp_path: Path) -> None:
    """There is no queue whose state could be shown."""
    (tmp_path / "z.yaml").write_text("queue: {directory: queue}\n")
    result = zonemta("status", "-c", tmp_path / "z.yaml")
    assert (result.exit_code, "there is no queue yet" in result.output) == (1, True)
