"""``zonemta tenant`` without a running relay; with one: tests/end_to_end/test_tenants.py."""

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner, Result

from tests.kit.queue import opened
from zonemta_py.cli.main import main
from zonemta_py.config.load import load_config
from zonemta_py.config.tenants import limit_rules
from zonemta_py.core import clock
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.submitters.limits import LimitedClient, Use


def zonemta(directory: Path, *arguments: str) -> Result:
    (directory / "z.yaml").write_text(
        "tenants:\n  acme: {users: [ann], domains: [acme.example], zones: [default], weight: 2}\n  globex: {}\n"
        "queue: {directory: queue}\n"
    )
    return CliRunner().invoke(main, [*arguments, "-c", str(directory / "z.yaml")])


async def _make_queue(directory: Path) -> None:
    async with opened(directory, clock.now_ms):
        pass


async def test_suspended_and_removed_from_the_configuration(tmp_path: Path) -> None:
    """It can be resumed: its mail would be held until the next change of the file."""
    async with opened(tmp_path / "queue", clock.now_ms) as queue:
        await queue.suspended.suspend("umbrella", "x")
    resumed = await asyncio.to_thread(zonemta, tmp_path, "resume", "--tenant", "umbrella")
    assert resumed.output == "resumed umbrella\n"
    again = await asyncio.to_thread(zonemta, tmp_path, "resume", "--tenant", "umbrella")
    assert (again.exit_code, "tenant umbrella is not suspended" in again.output) == (1, True)


def test_before_the_first_start(tmp_path: Path) -> None:
    """There is nothing to suspend in, and the list shows the configuration."""
    listed = [
        json.loads(line) for line in zonemta(tmp_path, "tenant", "list", "--json").output.splitlines()
    ]
    assert [(row["tenant"], row["weight"], row["suspended"]) for row in listed] == [
        ("acme", 2, None),
        ("globex", 1, None),
    ]
    refused = zonemta(tmp_path, "suspend", "--tenant", "acme")
    assert refused.exit_code == 1
    assert "there is no queue yet" in refused.output


async def test_offline(tmp_path: Path) -> None:
    """A relay that is down finds the suspension at its next start."""
    await _make_queue(tmp_path / "queue")

    def run(*arguments: str) -> Result:
        return zonemta(tmp_path, *arguments)

    assert (
        await asyncio.to_thread(run, "suspend", "--tenant", "acme", "--reason", "x")
    ).output == "suspended tenant acme\n"
    shown = (await asyncio.to_thread(run, "tenant", "show", "acme")).output
    assert "weight: 2" in shown
    assert "suspended since 20" in shown
    assert shown.endswith("UTC: x\n")
    row = json.loads((await asyncio.to_thread(run, "tenant", "show", "acme", "--json")).output)
    assert row["suspended"]["reason"] == "x"
    table = (await asyncio.to_thread(run, "tenant", "list")).output
    assert "acme.example" in table
    resumed = await asyncio.to_thread(run, "resume", "--tenant", "acme")
    assert resumed.output == "resumed acme\n"
    assert "suspended since 20" not in (await asyncio.to_thread(run, "tenant", "show", "acme")).output
    again = await asyncio.to_thread(run, "resume", "--tenant", "acme")
    assert (again.exit_code, again.stdout) == (1, "")
    assert "tenant acme is not suspended; suspended: nothing" in again.stderr
    unknown = await asyncio.to_thread(run, "suspend", "--tenant", "nope")
    assert unknown.exit_code == 2
    assert "no tenant 'nope'; there is acme, globex" in unknown.output


async def test_what_a_tenant_has_used(tmp_path: Path) -> None:
    """Of each limit, also while the relay is down."""
    queue = tmp_path / "queue"
    (tmp_path / "z.yaml").write_text(
        "tenants: {acme: {limits: {messages: [5/h, 20/d], bytes: [1GiB/d]}}}\nqueue: {directory: queue}\n"
    )
    config = load_config(tmp_path / "z.yaml")
    async with opened(queue, clock.now_ms) as opened_queue:
        opened_queue.limits.configure(limit_rules(config.tenants, config.limits))
        opened_queue.limits.charge(LimitedClient("acme", "", ""), Use(messages=2, bytes=2000))
        await opened_queue.commits.submit(WriteBatch())

    def run(*arguments: str) -> str:
        path = str(tmp_path / "z.yaml")
        return CliRunner().invoke(main, ["tenant", "show", "acme", *arguments, "-c", path]).output

    shown = await asyncio.to_thread(run)
    assert (
        "messages in 1h: 2 of 5\nmessages in 1d: 2 of 20\nbytes in 1d: 2,000 of 1,073,741,824\n" in shown
    )
    assert "- 1GiB/1d" in shown
    usage = json.loads(await asyncio.to_thread(run, "--json"))["usage"]
    assert usage[0] == {"limit": "messages", "of": 5, "per_s": 3600.0, "used": 2}
