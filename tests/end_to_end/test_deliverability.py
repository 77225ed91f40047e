"""docs/deliverability.md: its files are valid together, its commands work, and its week is what happens."""

import asyncio
import re
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml

from tests.kit.deadlines import scaled
from tests.kit.relay import relaying, staged
from zonemta_py.config.load import load_config
from zonemta_py.config.schema import Config
from zonemta_py.delivery.egress import read_egress
from zonemta_py.egress.rules import ProviderReply, ShapingEngine
from zonemta_py.egress.sources import names_in_pools
from zonemta_py.egress.warmup import DAY_MS, EPOCH, WarmUp

PAGE = (Path(__file__).parents[2] / "docs/deliverability.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^    \$ zonemta (.*)$", PAGE, re.MULTILINE)
ADDRESS = "192.0.2.20"


def write_files(directory: Path) -> Config:
    """The files of the page."""
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return load_config(directory / "relay.yaml")


def test_the_files_fit_together(directory: Path) -> None:
    """Providers, rules and schedules are read, and name what there is."""
    files = read_egress(write_files(directory))
    assert files.table.settings("google").mx, "its hosts are those of the shipped table"
    assert files.table.settings("google").limits.sessions == 30
    assert files.table.of("d.example", ("a.filter.example",)) == "corporate-filter"
    assert files.table.settings("some.host.example").limits.sessions_per_address == 20
    names = [rule.name for rule in files.rules.rules]
    assert names.index("google-blocked") < names.index("blocked")
    assert files.schedules[0].daily == (500, 1000, 2000, 4000, 8000)


async def zonemta(directory: Path, arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of a command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "zonemta_py", *arguments, cwd=directory,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, problems = await asyncio.wait_for(process.communicate(), scaled(60))
    return process.returncode or 0, output.decode() + problems.decode()


async def test_every_command_works(directory: Path) -> None:
    """With a relay on this machine that has the files of the page, and addresses of the loopback."""
    write_files(directory)
    async with staged(directory) as stage:
        own = yaml.safe_load(FILES["relay.yaml"])
        last = iter(range(41, 60))
        moved = {}
        for pool in own["pools"].values():
            for each in pool:
                moved[each["address"]] = f"127.0.0.{next(last)}"
                each["address"] = moved[each["address"]]
        (entry,) = yaml.safe_load(FILES["warmup.yaml"])
        entry["address"] = moved[entry["address"]]
        (directory / "warmup.yaml").write_text(yaml.safe_dump([entry]))
        config = stage.config(**{key: own[key] for key in ("pools", "providers", "shaping", "warmup")})
        (directory / "relay.yaml").write_text(config.text)
        async with relaying(load_config(directory / "relay.yaml")) as relay:  # writes an event log
            await relay.enqueue("s@sender.example", ["x@nowhere.example"], b"Subject: x\r\n\r\nx\r\n")
        async with relaying(load_config(directory / "relay.yaml")):
            for command in COMMANDS:
                arguments = re.findall(r'"([^"]*)"|(\S+)', command)
                code, output = await zonemta(directory, ["".join(each) for each in arguments])
                if command.startswith("shaping clear"):
                    assert "192.0.2.11" in output, "there is no such pace"
                elif command.startswith("check"):
                    assert code == 0 or "in use" in output, output
                    assert "invalid" not in output, output
                else:
                    assert code == 0, f"{command}: {output}"
                if command.startswith("warmup plan"):
                    assert yaml.safe_load(output.partition("day ")[0]) == yaml.safe_load(
                        FILES["warmup.yaml"]
                    )
                if command.startswith("classify"):
                    assert output.startswith("rate_limited")


def at(day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    """Unix ms of a time on a day of December 2026."""
    days = date(2026, 12, day).toordinal() - EPOCH
    return days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000


def blocked() -> ProviderReply:
    return ProviderReply("google", ADDRESS, "default", "d.example", "blocked", 550, "5.7.1", "blocked")


@pytest.fixture
def week(directory: Path) -> tuple[WarmUp, ShapingEngine]:
    config = write_files(directory)
    files = read_egress(config)
    warmup, engine = WarmUp(), ShapingEngine()
    warmup.configure(files.schedules, {})
    engine.configure(
        config.shaping.controller,
        files.rules,
        lambda name: files.table.settings(name).limits,
        names_in_pools(config.pools),
    )
    return warmup, engine


def test_the_week(week: tuple[WarmUp, ShapingEngine]) -> None:
    """The table of the page, day by day."""
    warmup, engine = week
    rows = re.findall(r"^\| (2026-12-\d\d) \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    [warming] = warmup.all()
    changes = []
    for day, allowed, what in rows:
        number = int(day[-2:])
        if "blocked reply" in what:
            for second in range(5):
                changes += engine.reply(blocked(), "m", at(number, 10, 0, second))
            assert warming.slow(at(number, 10)), (
                "the relay does that with each change that lowers a pace"
            )
        room = warming.allowed(at(number) // DAY_MS)
        assert str(room if room is not None else "any") == allowed
    assert [each.cause for each in changes] == [
        "the class of a reply was blocked", "rule google-blocked",
    ]  # fmt: skip
    key = ("google", ADDRESS)
    assert engine.controller.paces[key].paused_ms == at(3, 12, 0, 4)
    steps = engine.controller.advance(key, at(3, 14))
    assert steps[0].before == "1 sessions, 120/m"
    assert (steps[-1].time_ms, steps[-1].after) == (at(3, 12, 45, 4), "full")
