"""``zonemta shaping``: the replay of an event log finds the changes that the relay made, and others with other settings."""

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.kit.deadlines import eventually, until
from tests.kit.relay import Stage, empty, logged_events, relaying, staged
from zonemta_py.cli.main import main
from zonemta_py.config.schema import Config
from zonemta_py.events.segment_reading import read_open_segments
from zonemta_py.relay.relay import Relay

ADDRESSES = ["127.0.0.31", "127.0.0.32"]
TEXT = b"Subject: hi\r\n\r\nbody\r\n"
LATER = "450 4.7.28 rate limit of your IP exceeded"
RULE = {
    "name": "slow", "provider": "big", "class": ["rate_limited"], "threshold": "20/1h",
    "action": "lower_sessions", "to": 1, "for": "1s",
}  # fmt: skip


def shaped(stage: Stage, processes: tuple[int, int] = (0, 0)) -> Config:
    (stage.directory / "providers.yaml").write_text("providers: {big: {mx: ['*.big.example']}}\n")
    (stage.directory / "shaping.yaml").write_text(yaml.safe_dump({"rules": [RULE]}))
    controller = {"interval": "1s", "attempts": 10, "decrease": 50, "step": 50, "sessions": 8}
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        shaping={"file": "shaping.yaml", "shipped": False, "controller": controller},
        pools={"default": [{"address": each} for each in ADDRESSES]},
        processes={"receivers": processes[0], "senders": processes[1]},
    )


async def zonemta(*arguments: object) -> Result:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, main, [str(each) for each in arguments])


async def rows(*arguments: object) -> list[dict[str, Any]]:
    found = await zonemta(*arguments, "--json")
    assert found.exit_code in (0, 1), found.output
    return [json.loads(line) for line in found.output.splitlines()]


def changes(directory: Path, *, raises: bool) -> int:
    """How many changes are in the open segment of the event log: those that raise a pace, or the others."""
    found = read_open_segments(directory / "events")
    return sum(1 for each in found if each["event"] == "shaped" and ("quiet" in each["cause"]) == raises)


async def fill(relay: Relay, messages: int, name: str) -> None:
    for number in range(messages):
        await relay.enqueue("s@sender.example", [f"{name}{number}@a.example"], TEXT)


@pytest.mark.parametrize("processes", [(0, 0), (2, 2)])
async def test_a_replay_gives_what_was_recorded(directory: Path, processes: tuple[int, int]) -> None:
    """Also over a restart and what an operator ended. Other settings give another list, and ``--compare`` says so."""
    async with staged(directory) as stage:
        rules = [{"at": "rcpt", "recipient": "bad*", "reply": LATER, "times": 2}]
        await stage.provider("big", ["a.example"], rules=rules)
        config = shaped(stage, processes)
        async with relaying(config) as relay:
            await fill(relay, 60, "good")
            await fill(relay, 40, "bad")
            await empty(relay)
            await until(lambda: changes(directory, raises=True) >= 2, "paces that come up")
            await ended_by_an_operator(relay)
        async with relaying(config) as relay:
            await fill(relay, 40, "bad.again")
            await empty(relay)
            await until(lambda: changes(directory, raises=True) >= 2, "paces that come up again")
        recorded = logged_events(directory, "shaped")
        assert {each["what"] for each in recorded} == {"pace"}
        assert [each["to"] for each in recorded if each["cause"] == "an operator"] == ["full"]
        assert any(each["cause"] == "rule slow" for each in recorded)
        assert any("refused or deferred" in each["cause"] for each in recorded)
        *found, counts = await rows("shaping", "replay", "-c", config.path)
        names = ("time_ms", "provider", "address", "what", "from", "to", "cause")
        expected = sorted(
            tuple(each[name] for name in names) for each in recorded if each["cause"] != "an operator"
        )
        assert [tuple(each[name] for name in names) for each in found] == expected
        assert (counts["missing"], counts["extra"]) == (0, 0)
        assert counts["changes"] == counts["recorded"] == len(found) > 4
        refused = [
            each for each in logged_events(directory, "deferred") if each["class"] == "rate_limited"
        ]
        by_rule = sum(each["cause"] == "rule slow" for each in found)
        assert counts["rules"] == [
            {"rule": "slow", "action": "lower_sessions", "replies": len(refused), "changes": by_rule}
        ]
        same = await zonemta("shaping", "replay", "-c", config.path, "--compare")
        assert same.exit_code == 0, same.output
        await other_settings(directory, config, len(found))


async def ended_by_an_operator(relay: Relay) -> None:
    """The pace of one of the addresses is ended, as long as it is low."""
    status, tries = ("shaping", "status", "-c", relay.config.path, "--provider", "big"), count()

    async def ended() -> bool:
        await fill(relay, 20, f"bad.operator.{next(tries)}.")
        limited = [row["address"] for row in await rows(*status) if row["pace_sessions"] is not None]
        if not limited:
            return False
        table = await zonemta(*status, "--address", limited[0])
        assert "rate_limited" in table.output
        chosen = ("--provider", "big", "--address", limited[0])
        found = await zonemta("shaping", "clear", "-c", relay.config.path, *chosen)
        return found.output.startswith(f"cleared for {limited[0]} at big: ")

    await eventually(ended, "a pace that is ended")
    await empty(relay)


async def other_settings(directory: Path, config: Config, before: int) -> None:
    document = yaml.safe_load(Path(config.path).read_text())
    document["shaping"] = {"shipped": False, "controller": {"enabled": False}}
    (directory / "off.yaml").write_text(yaml.safe_dump(document))
    off = ("shaping", "replay", "-c", directory / "off.yaml", "--events", directory / "events")
    *none, counts = await rows(*off)
    assert (none, counts["missing"], counts["extra"]) == ([], before, 0)
    found = await zonemta(*off, "--compare")
    assert found.exit_code == 1
    assert found.output.startswith("- 20")
    assert f"of {before} that were recorded {before} are not among them, and 0 are new" in found.output
    late = await rows(*off, "--from", "2999-01-01")
    assert late == [{"attempts": 0, "changes": 0, "recorded": 0, "missing": 0, "extra": 0, "rules": []}]


async def test_without_a_relay_or_a_log(directory: Path) -> None:
    async with staged(directory) as stage:
        config = shaped(stage)
        async with relaying(config):
            assert (await zonemta("shaping", "status", "-c", config.path)).output == (
                "nothing is limited or under way\n"
            )
        down = await zonemta("shaping", "status", "-c", config.path)
        assert (down.exit_code, "no relay is running" in down.output) == (1, True)
        nothing = await zonemta(
            "shaping", "clear", "-c", config.path, "--provider", "big", "--address", ADDRESSES[0]
        )
        assert nothing.exit_code == 1
        assert f"there is no pace of {ADDRESSES[0]} at big" in nothing.output
        for no_log in (directory / "no", directory):
            missing = await zonemta("shaping", "replay", "-c", config.path, "--events", no_log)
            assert (missing.exit_code, "there is no event log here" in missing.output) == (1, True)
        assert (await zonemta("shaping", "replay")).exit_code == 2
        (directory / "events" / "date=2026-11-20").mkdir(parents=True)
        defaults = await rows("shaping", "replay", "--events", directory / "events")
        assert defaults[-1]["attempts"] == 0
