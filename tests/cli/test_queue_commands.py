"""``zonemta queue`` on a queue without a relay: how a message is named, exit codes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kit.queue import accept, opened
from zonemta_py.cli.main import main
from zonemta_py.cli.queue import change
from zonemta_py.core import clock


@pytest.fixture
def config(directory: Path) -> Path:
    path = directory / "zonemta.yaml"
    path.write_text("queue: {directory: queue, min_free_disk: 1MiB}\nevents: {directory: events}\n")
    return path


@pytest.fixture
async def message(directory: Path, config: Path) -> str:
    """A message to two, in the queue of ``config``."""
    async with opened(directory / "queue", clock.now_ms, store="leveldb") as queue:
        return await accept(queue, "a@x.example", "b@y.example")


@pytest.fixture
def run(config: Path) -> Iterator[Any]:
    def invoke(*arguments: str, answer: str = "") -> Result:
        return CliRunner().invoke(main, ["queue", *arguments, "-c", str(config)], input=answer)

    yield invoke


@pytest.mark.parametrize("command", ["flush", "hold", "release", "delete"])
def test_a_message_is_an_argument_or_an_option(run: Any, message: str, command: str) -> None:
    for arguments in ([message], ["--message", message], [message, "--message", message]):
        result = run(command, *arguments)
        if command == "delete" and arguments != [message]:
            assert (result.exit_code, f"no message {message}" in result.stderr) == (1, True)
        else:
            assert result.exit_code == 0, result.output
    result = run(command, message, "--message", "another")
    assert result.exit_code == 2
    assert "name different messages" in result.stderr


@pytest.mark.parametrize("command", ["hold", "release", "delete"])
def test_a_message_is_required(run: Any, message: str, command: str) -> None:
    result = run(command)
    assert result.exit_code == 2
    assert "name a MESSAGE, or select mail by --zone" in result.stderr


@pytest.mark.parametrize("command", ["hold", "release", "delete", "bounce"])
def test_a_message_goes_with_no_option_that_selects(run: Any, message: str, command: str) -> None:
    for arguments in (["--domain", "x.example"], ["--dry-run"]):
        result = run(command, message, *arguments)
        assert result.exit_code == 2
        assert "MESSAGE goes with --recipient only" in result.stderr


def test_what_is_selected_is_counted_and_changed(run: Any, message: str) -> None:
    assert run("hold", "--domain", "X.example", "--dry-run").stdout == "1 recipient selected\n"
    assert run("hold", "--domain", "X.example").stdout == "1 recipient held, 0 in flight and skipped\n"
    assert run("release", "--state", "held").stdout == "1 recipient released\n"
    assert json.loads(run("hold", "--tenant", "", "--json").stdout) == {"held": 2, "in_flight": 0}
    assert run("hold", "--zone", "no").exit_code == 2


def test_a_question_before_selected_mail_is_removed(
    run: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal only --yes removes it; an answer that is no changes nothing."""
    for command in ("delete", "bounce"):
        refused = run(command, "--domain", "x.example")
        assert refused.exit_code == 2
        assert "only with --yes" in refused.stderr
    monkeypatch.setattr(change, "_has_terminal", lambda: True)
    asked = run("delete", "--zone", "default", answer="n\n")
    assert asked.exit_code == 1
    assert "2 recipients are to be deleted. Go on?" in asked.stderr
    assert run("delete", "--zone", "default", answer="y\n").stdout.startswith("2 recipients deleted")
    assert run("delete", "--zone", "default", "--yes").stdout.startswith("0 recipients deleted")


def test_flush_needs_no_message(run: Any, message: str) -> None:
    assert run("flush").stdout == "0 deferred recipients are due now\n"


def test_hold_and_release_count_recipients(run: Any, message: str) -> None:
    assert run("hold", message).stdout == "2 recipients held, 0 in flight and skipped\n"
    rows = [json.loads(line) for line in run("list", "--state", "held", "--json").stdout.splitlines()]
    assert [row["recipient"] for row in rows] == ["a@x.example", "b@y.example"]
    released = run("release", message, "--recipient", "a@x.example", "--json")
    assert json.loads(released.stdout) == {"released": 1}


def test_bounce_without_a_relay(run: Any, message: str) -> None:
    """The report waits in the queue for the next start."""
    result = run("bounce", message, "--reason", "sent by mistake", "--json")
    assert json.loads(result.stdout) == {"bounced": 2, "in_flight": 0}
    [report] = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    text = run("body", report["message"]).stdout
    assert text.count("sent by mistake") >= 2
    assert "a@x.example" in text
    assert "b@y.example" in text
    assert run("bounce", message).exit_code == 1


@pytest.mark.parametrize("command", ["status", "top"])
def test_rates_and_counters_need_a_running_relay(config: Path, message: str, command: str) -> None:
    result = CliRunner().invoke(main, [command, "-c", str(config)])
    assert result.exit_code == 1
    assert "no relay is running" in result.stderr


def test_only_a_running_relay_has_addresses_to_clear(run: Any, message: str) -> None:
    """Silence would be taken for success."""
    result = run("unreachable", "--clear", "192.0.2.1")
    assert result.exit_code == 1
    assert "no relay is running" in result.stderr


def test_an_unknown_zone_is_wrong_usage(run: Any, message: str) -> None:
    result = run("list", "--zone", "nowhere")
    assert result.exit_code == 2
    assert "no zone 'nowhere'; there is default" in result.stderr


@pytest.mark.parametrize(
    ("by", "keys", "count"),
    [("zone", ("zone", "waiting"), 1), ("destination", ("destination", "waiting", "why"), 2), ("tenant", ("tenant", "queued"), 0)],
)  # fmt: skip
def test_a_summary_by_each_kind(
    run: Any, message: str, by: str, keys: tuple[str, ...], count: int
) -> None:
    rows = [json.loads(line) for line in run("summary", "--by", by, "--json").stdout.splitlines()]
    assert len(rows) == count
    assert all(key in row for row in rows for key in keys)
    shown = run("summary", "--by", by).stdout.splitlines()
    assert shown == ["no tenant has mail"] if by == "tenant" else len(shown) == count + 1


def test_what_a_summary_refuses(run: Any, message: str) -> None:
    for arguments, problem in (
        (("--troubled",), "--troubled goes with --by destination"),
        (("--by", "tenant", "--zone", "default"), "--zone does not go with --by tenant"),
    ):
        result = run("summary", *arguments)
        assert (result.exit_code, problem in result.stderr) == (2, True)
    assert run("summary", "--zone", "nowhere").exit_code == 2
    assert "no relay is running" in run("summary", "--by", "destination", "--troubled").stderr
    assert run("summary", "--zone", "default", "--json").stdout.count("\n") == 1


def test_the_earlier_name_of_a_state(run: Any, message: str) -> None:
    result = run("list", "--state", "stopped")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "warning: the state 'stopped' is now called 'suspended'\n"
    assert run("list", "--state", "lost").exit_code == 2


def test_a_state_in_words(run: Any, message: str) -> None:
    result = run("show", message, "--states")
    assert result.stdout.startswith("S4  ")
    assert "0  <a@x.example> queued" in result.stdout


def test_arguments_that_are_no_utf_8(run: Any, message: str) -> None:
    """As the shell passes bytes of another encoding; said before a relay is asked."""
    result = run("hold", "\udcff")
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert "expected arguments in UTF-8" in result.stderr


async def put(directory: Path) -> None:
    async with opened(directory / "queue", clock.now_ms, store="leveldb") as queue:
        for zone, count in ("a", 1), ("big", 9), ("c", 2):
            await accept(queue, *[f"r{n}@x.example" for n in range(count)], zone=zone)


def test_the_largest_zones_come_first(directory: Path) -> None:
    """Of three zones the first one by name is not the largest."""
    path = directory / "zonemta.yaml"
    path.write_text(
        "hostname: r.example\nzones: {a: {}, big: {}, c: {}, default: {}}\nqueue: {directory: queue}\n"
    )
    asyncio.run(put(directory))
    result = CliRunner().invoke(main, ["queue", "summary", "--limit", "2", "--json", "-c", str(path)])
    assert [json.loads(line)["zone"] for line in result.stdout.splitlines()] == ["big", "c"]
