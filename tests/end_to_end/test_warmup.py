"""Addresses that are new: their number of the day holds, over processes and restarts, and operators see and pause it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.kit.deadlines import eventually, until
from tests.kit.relay import Stage, empty, logged_events, relaying, sound, staged
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.upkeep.inspect import recipient_rows
from zonemta_py.relay.relay import Relay

NEW, OLD = "127.0.0.31", "127.0.0.32"
TEXT = b"Subject: hi\r\n\r\nbody\r\n"
DOMAINS = ["a.example", "b.example"]
MIDNIGHT_MS = 10 * 60_000  # a test ends within this time


@pytest.fixture(autouse=True)
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runs over midnight (UTC)."""
    real, day_ms = clock.now_ms, 86_400_000
    left_ms = day_ms - real() % day_ms
    if left_ms < MIDNIGHT_MS:
        monkeypatch.setattr(clock, "now_ms", lambda: real() + left_ms)


def warming(
    stage: Stage,
    addresses: Sequence[str],
    processes: tuple[int, int],
    daily: Sequence[int] = (5, 10),
    **changes: Any,
) -> Config:
    """A relay with these addresses, of which NEW begins today."""
    (stage.directory / "providers.yaml").write_text(
        "providers: {big: {mx: ['*.big.example'], limits: {sessions: 10}}}\n"
    )
    entry = {"address": NEW, "begins": clock.utc(clock.now_ms()).date(), "daily": list(daily)}
    (stage.directory / "warmup.yaml").write_text(yaml.safe_dump([entry]))
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        warmup={"file": "warmup.yaml"},
        pools={
            "default": [{"address": each, "weight": 1000 if each == NEW else 1} for each in addresses]
        },
        processes={"receivers": processes[0], "senders": processes[1]},
        **changes,
    )


async def fill(relay: Relay, messages: int, name: str = "m") -> None:
    for number in range(messages):
        to = f"{name}{number}@{DOMAINS[number % len(DOMAINS)]}"
        await relay.enqueue("s@sender.example", [to], TEXT)


async def zonemta(*arguments: object) -> Result:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, main, [str(each) for each in arguments])


def sent_from(stage: Stage, address: str) -> int:
    client = stage.sinks["big"].providers["big"].clients.get(address)
    return len(client.accepted) if client is not None else 0


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_the_rest_leaves_from_another_address(directory: Path, processes: tuple[int, int]) -> None:
    """Exactly the number of the day leaves from the new one, also after a restart."""
    async with staged(directory) as stage:
        await stage.provider("big", DOMAINS)
        config = warming(stage, [NEW, OLD], processes)
        async with relaying(config) as relay:
            await fill(relay, 40)
            await empty(relay)
            assert sound(relay)
            assert (sent_from(stage, NEW), sent_from(stage, OLD)) == (5, 35)
            shown = await zonemta("warmup", "status", "-c", config.path, "--json")
            row = json.loads(shown.output)
            assert (row["address"], row["step"], row["steps"]) == (NEW, 1, 2)
            assert (row["allowed"], row["sent"], row["left"]) == (5, 5, 0)
        async with relaying(config) as relay:
            await fill(relay, 10, "again")
            await empty(relay)
        assert (sent_from(stage, NEW), sent_from(stage, OLD)) == (5, 45)


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_the_rest_waits(directory: Path, processes: tuple[int, int]) -> None:
    """Without another address, and ``why`` says for what and until when; a restart does not begin again at 0."""
    async with staged(directory) as stage:
        await stage.provider("big", DOMAINS)
        config = warming(stage, [NEW], processes)
        async with relaying(config) as relay:
            await fill(relay, 12)
            await until(lambda: sent_from(stage, NEW) == 5, "the mail of today")
            await until(lambda: len(list(recipient_rows(relay.queue.store))) == 7, "its settles")
            await eventually(lambda: all_wait(relay, 7), "the reason of all of them")
        async with relaying(config) as relay:
            await fill(relay, 2, "again")
            await until(lambda: len(list(recipient_rows(relay.queue.store))) == 9, "all of them")
            await eventually(lambda: all_wait(relay, 9), "the reason of all of them")
            assert sent_from(stage, NEW) == 5
            table = (await zonemta("warmup", "status", "-c", config.path)).output
            assert "1 of 2" in table


async def all_wait(relay: Relay, number: int) -> bool:
    """Whether ``number`` recipients wait for it, until midnight."""
    found = await zonemta("queue", "list", "-c", relay.config.path, "--json")
    rows: list[dict[str, Any]] = [json.loads(line) for line in found.output.splitlines()]
    waiting = [row["why"] for row in rows if row["why"]["name"] == "warmup"]
    midnight_ms = (clock.now_ms() // 86_400_000 + 1) * 86_400_000
    for why in waiting:
        assert why["key"] == "warmup.file"
        assert abs(why["until_ms"] - midnight_ms) < 2000
    return len(waiting) == number


async def test_an_operator_pauses_it(directory: Path) -> None:
    """In a running relay and in one that is down; with an event, and over a restart."""
    async with staged(directory) as stage:
        await stage.provider("big", DOMAINS)
        config = warming(stage, [NEW], (0, 0))
        options = ("-c", config.path, "--address", NEW, "--json")
        async with relaying(config):
            paused = await zonemta("warmup", "pause", *options)
            assert json.loads(paused.output)["paused"] is True
            unknown = await zonemta("warmup", "pause", "-c", config.path, "--address", "127.0.0.33")
            assert unknown.exit_code == 2
            assert f"no warm-up of '127.0.0.33'; there is {NEW}" in unknown.output
        down = await zonemta("warmup", "status", "-c", config.path, "--json")
        assert json.loads(down.output)["paused"] is True
        continued = await zonemta("warmup", "continue", *options)
        assert json.loads(continued.output)["paused"] is False
        async with relaying(config) as relay:
            shown = await zonemta("warmup", "status", "-c", config.path, "--json")
            assert json.loads(shown.output)["paused"] is False
            await fill(relay, 3)
            await empty(relay)
    changes = [(each["from"], each["to"]) for each in logged_events(directory, "shaped")]
    assert changes == [("continued", "paused"), ("paused", "continued")]


def has_deferred(relay: Relay, number: int) -> bool:
    return sum(row[RecipientState.DEFERRED] for row in relay.queue.census.zones().values()) == number


async def test_it_slows_down_by_itself(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """When the provider refuses the address: once a day, also over a restart, with an event and a line of the log."""
    rule = {"name": "slow", "class": "rate_limited", "action": "lower_rate", "to": "50%", "for": "1h"}
    (directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [rule]}))
    reply = {"at": "rcpt", "recipient": "slow*@*", "reply": "451 4.7.28 unusual rate of mail"}
    async with staged(directory) as stage:
        await stage.provider("big", DOMAINS, rules=[reply])
        zones = {"default": {"retry": {"delays": ["1h"]}}}
        config = warming(stage, [NEW], (0, 0), (50, 100), zones=zones)
        shaping = replace(config.shaping, file=directory / "shaping.yaml", shipped=False)
        config = replace(config, shaping=shaping)
        for number in (2, 4):
            async with relaying(config) as relay:
                await fill(relay, 2, f"slow{number}")
                await until(partial(has_deferred, relay, number), "two more")
    line = f"big from {NEW}: warmup: the same step tomorrow (its pace was lowered: rule slow)"
    assert caplog.text.count(line) == 1
    found = [each for each in logged_events(directory, "shaped") if each["what"] == "warmup"]
    assert [(each["provider"], each["address"], each["to"], each["cause"]) for each in found] == [
        ("big", NEW, "the same step tomorrow", "its pace was lowered: rule slow")
    ]
