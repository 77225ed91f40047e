"""``zonemta warmup plan``: the file that it writes is one that ``warmup.file`` may name."""

from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zonemta_py.cli.main import main
from zonemta_py.config.warmup import WarmupSchedule, read_warmups

PLAN = ["--address", "203.0.113.7", "--start", "2026-12-01", "--target", "1000"]


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


OTHER = """\
# our addresses
- address: 203.0.113.8   # the old one
  begins: 2026-11-01
  daily: [1, 2]

# and this
- address: 203.0.113.9
  begins: 2026-11-01
  daily: [3]
# the end
"""


def test_an_entry_is_added_to_a_file(tmp_path: Path) -> None:
    """What the file has stays, comments too."""
    path = tmp_path / "w.yaml"
    path.write_text(OTHER)
    for provider in ("", "google"):
        assert zonemta("plan", *PLAN, "--provider", provider, "-o", path).exit_code == 0
    assert [(each.address, each.provider) for each in read_warmups(path)] == [
        ("203.0.113.8", ""), ("203.0.113.9", ""), ("203.0.113.7", ""), ("203.0.113.7", "google"),
    ]  # fmt: skip
    kept = path.read_text()
    assert kept.startswith(OTHER.removesuffix("# the end\n"))
    assert kept.endswith("# the end\n")


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        "- {address: 203.0.113.8, begins: 2026-11-01, daily: [1]}\n- {address: 203.0.113.9, begins: 2026-11-01, daily: [1]}",
        "[{address: 203.0.113.8, begins: 2026-11-01, daily: [1]},\n  {address: 203.0.113.9, begins: 2026-11-01, daily: [1]}]\n",
        "---\n  -\n    address: 203.0.113.8\n    begins: 2026-11-01\n    daily: [1]\n  - address: 203.0.113.9\n    begins: 2026-11-01\n    daily: [1]\n...\n",
    ],
)
@pytest.mark.parametrize("address", ["203.0.113.8", "203.0.113.9", "203.0.113.7"])
def test_an_entry_is_replaced_only_with_force(tmp_path: Path, text: str, address: str) -> None:
    """However the file is written; the other entries stay in their order."""
    path = tmp_path / "w.yaml"
    path.write_text(text)
    before = read_warmups(path)
    plan = ["plan", "--address", address, *PLAN[2:], "-o", path]
    refused = zonemta(*plan)
    if address != "203.0.113.7":
        number = [each.address for each in before].index(address)
        assert refused.exit_code == 2
        assert (
            f"{before[number].where}: {address} for all mail has a schedule already; --force"
            in refused.output
        )
        assert path.read_text() == text
        assert zonemta(*plan, "--force").exit_code == 0
    after = {each.address: each for each in read_warmups(path)}
    assert list(after) == list(dict.fromkeys([*(each.address for each in before), address]))
    assert after[address].daily[-1] == 1000
    assert [each for each in before if each.address != address] == [
        after[each.address] for each in before if each.address != address
    ]
    if text is OTHER:
        assert "# our addresses" in path.read_text() and "# and this" in path.read_text()


def test_a_file_that_is_no_schedule_stays(tmp_path: Path) -> None:
    path = tmp_path / "zonemta.yaml"
    path.write_text("zones: {}\n")
    refused = zonemta("plan", *PLAN, "-o", path)
    assert (refused.exit_code, path.read_text()) == (2, "zones: {}\n")
    assert f"{path}:1: entries: found a mapping, expected a list" in refused.output


@pytest.mark.parametrize("text", ["", "# mine\n", "[]\n"])
def test_the_first_entry(tmp_path: Path, text: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    assert zonemta("plan", *PLAN, "-o", path).exit_code == 0
    assert [each.address for each in read_warmups(path)] == ["203.0.113.7"]
    assert text.startswith("#") is ("# mine" in path.read_text())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--address", "x", *PLAN[2:]], "--address: 'x' does not appear to be an IPv4 or IPv6 address"),
        ([*PLAN, "--first", "2000"], "--first 2000 is more than --target 1000"),
        ([*PLAN, "--growth", "1"], "--growth"),
        ([*PLAN, "--growth", "nan"], "--growth: found nan"),
        ([*PLAN[:3], "tomorrow", *PLAN[4:]], "--start"),
        (
            [*PLAN[:3], "9999-12-30", *PLAN[4:]],
            "--start: found 9999-12-30, expected 2999-12-31 or earlier",
        ),
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
