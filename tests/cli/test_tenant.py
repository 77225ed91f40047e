"""``zonemta tenant`` without a running relay; with one: tests/end_to_end/test_tenants.py."""

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner, Result

from tests.kit.queue import opened
from zonemta_py.cli.main import main
from zonemta_py.core import clock


def zonemta(directory: Path, *arguments: str) -> Result:
    (directory / "z.yaml").write_text(
        "tenants:\n  acme: {users: [ann], domains: [acme.example], zones: [default], weight: 2}\n  globex: {}\n"
        "queue: {directory: queue}\n"
    )
    return CliRunner().invoke(main, ["tenant", *arguments, "-c", str(directory / "z.yaml")])


async def _make_queue(directory: Path) -> None:
    async with opened(directory, clock.now_ms):
        pass


def test_before_the_first_start(tmp_path: Path) -> None:
    """There is nothing to suspend in, and the list shows the configuration."""
    listed = [json.loads(line) for line in zonemta(tmp_path, "list", "--json").output.splitlines()]
    assert [(row["tenant"], row["weight"], row["suspended"]) for row in listed] == [
        ("acme", 2, None),
        ("globex", 1, None),
    ]
    refused = zonemta(tmp_path, "suspend", "acme")
    assert refused.exit_code == 1
    assert "there is no queue yet" in refused.output


async def test_offline(tmp_path: Path) -> None:
    """A relay that is down finds the suspension at its next start."""
    await _make_queue(tmp_path / "queue")

    def run(*arguments: str) -> Result:
        return zonemta(tmp_path, *arguments)

    assert (
        await asyncio.to_thread(run, "suspend", "acme", "--reason", "x")
    ).output == "suspended acme\n"
    shown = (await asyncio.to_thread(run, "show", "acme")).output
    assert "weight: 2" in shown
    assert "suspended since 20" in shown
    assert shown.endswith("UTC: x\n")
    row = json.loads((await asyncio.to_thread(run, "show", "acme", "--json")).output)
    assert row["suspended"]["reason"] == "x"
    table = (await asyncio.to_thread(run, "list")).output
    assert "acme.example" in table
    resumed = await asyncio.to_thread(run, "resume", "acme")
    assert resumed.output == "resumed acme, released 0 recipients\n"
    assert "suspended since 20" not in (await asyncio.to_thread(run, "show", "acme")).output
    unknown = await asyncio.to_thread(run, "suspend", "nope")
    assert unknown.exit_code == 2
    assert "no tenant 'nope'; `zonemta tenant list` shows them" in unknown.output
