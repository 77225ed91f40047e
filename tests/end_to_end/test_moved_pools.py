"""A rule of shaping moves the mail of a pool to another one: operators see it and end it, in a running relay and in one that is down."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.kit.deadlines import until
from tests.kit.relay import Stage, empty, logged_events, relaying, staged
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config

FIRST, OTHER = "127.0.0.31", "127.0.0.32"
TEXT = b"Subject: hi\r\n\r\nbody\r\n"
RULE = {
    "name": "move",
    "provider": "big",
    "class": "blocked",
    "action": "pool",
    "pool": "other",
    "for": "1h",
}

POOLS = {"default": [{"address": FIRST}], "other": [{"address": OTHER}]}


def moving(stage: Stage, for_: str = "1h", pools: dict[str, Any] = POOLS) -> Config:
    (stage.directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
    (stage.directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [RULE | {"for": for_}]}))
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        shaping={"file": "shaping.yaml", "shipped": False, "controller": {"enabled": False}},
        pools=pools,
        processes={"receivers": 0, "senders": 0},
    )


async def zonemta(*arguments: object) -> str:
    runner = CliRunner()
    found = await asyncio.to_thread(runner.invoke, main, [str(each) for each in arguments])
    assert found.exit_code == 0, found.output
    return found.output


async def reroutes(config: Config) -> list[Any]:
    rows = (await zonemta("shaping", "status", "-c", config.path, "--json")).splitlines()
    return [each["to"] for row in map(json.loads, rows) for each in row["reroutes"]]


@pytest.mark.parametrize("running", [True, False])
async def test_an_operator_ends_it(directory: Path, running: bool) -> None:
    """The replay of the log has the same changes."""
    async with staged(directory) as stage:
        provider = await stage.provider("big", ["a.example"])
        config = moving(stage)
        end = ("shaping", "clear", "-c", config.path, "--provider", "big", "--pool", "default")
        async with relaying(config) as relay:
            provider.block(FIRST, "450 4.7.1 Client host blocked using zen.example")
            await relay.enqueue("s@sender.example", ["x@a.example"], TEXT)
            await empty(relay)
            assert len(provider.clients[OTHER].accepted) == 1
            assert set(await reroutes(config)) == {"other"}
            shown = await zonemta("shaping", "status", "-c", config.path)
            assert "mail of the pool default to big leaves from other for 60." in shown
            provider.unblock(FIRST)
            if running:
                assert await zonemta(*end) == "cleared for pool default at big: other\n"
        if not running:
            assert await zonemta(*end) == "cleared for pool default at big: other\n"
        async with relaying(config) as relay:
            assert await reroutes(config) == []
            await relay.enqueue("s@sender.example", ["y@a.example"], TEXT)
            await empty(relay)
            assert len(provider.clients[FIRST].accepted) == 1
        changes = [(each["from"], each["to"]) for each in logged_events(directory, "shaped")]
        assert changes[0][0] == "default"
        assert changes[0][1].startswith("other until ")
        assert changes[1:] == [("other", "default")]
        replayed = await zonemta("shaping", "replay", "-c", config.path, "--compare")
        assert replayed.startswith("3 replies, 1 changes; of 1 that were")


@pytest.mark.parametrize("at", ["mail", "connect"])
async def test_its_time_is_over(directory: Path, at: str) -> None:
    """That is an event, too, at the time that the first one names; a restart beside it changes nothing."""
    async with staged(directory) as stage:
        provider = await stage.provider("big", ["a.example"], block={"at": at})
        config = moving(stage, "1s")
        async with relaying(config) as relay:
            provider.block(FIRST, "450 4.7.1 Client host blocked using zen.example")
            await relay.enqueue("s@sender.example", ["x@a.example"], TEXT)
            await empty(relay)
            provider.unblock(FIRST)
        async with relaying(config) as relay:
            egress = relay._delivery.egress
            await until(lambda: egress.rerouted_pool("big", "default") == "default", "the own pool")
            await relay.enqueue("s@sender.example", ["y@a.example"], TEXT)
            await empty(relay)
            assert len(provider.clients[FIRST].accepted) == 1
        begin, end = logged_events(directory, "shaped")
        assert (begin["from"], begin["to"]) == ("default", f"other until {end['time_ms']}")
        assert (end["from"], end["to"], end["cause"]) == ("other", "default", "its time is over")
        async with relaying(config) as relay:
            assert not relay._delivery.egress.shaper.engine.reroutes
        replayed = await zonemta("shaping", "replay", "-c", config.path, "--compare")
        assert "2 changes; of 2 that were recorded 0" in replayed, replayed


async def test_mail_that_waits_in_the_other_pool_leaves_from_its_own_when_the_time_is_over(
    directory: Path,
) -> None:
    async with staged(directory) as stage:
        provider = await stage.provider("big", ["a.example"])
        limited = {"address": OTHER, "limits": {"rate": "1/h"}}
        config = moving(stage, "2s", pools={"default": [{"address": FIRST}], "other": [limited]})
        async with relaying(config) as relay:
            provider.block(FIRST, "450 4.7.1 Client host blocked using zen.example")
            await relay.enqueue("s@sender.example", ["x@a.example"], TEXT)
            await empty(relay)
            provider.unblock(FIRST)
            await relay.enqueue("s@sender.example", ["y@a.example"], TEXT)
            await empty(relay)
            assert [len(provider.clients[each].accepted) for each in (OTHER, FIRST)] == [1, 1]
