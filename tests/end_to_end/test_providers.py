"""The limits of providers hold at the receivers, in one process and over several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.relay import Stage, empty, relaying, sound, staged
from zonemta_py.sink.sink_provider import SinkProvider

ADDRESSES = ["127.0.0.31", "127.0.0.32"]
PROCESSES = [(0, 0), (2, 2)]
TEXT = b"Subject: hi\r\n\r\nbody\r\n"


def shaped(stage: Stage, processes: tuple[int, int], providers: dict[str, Any], **changes: Any) -> Any:
    """A relay with two addresses, and these providers by name: the hosts are ``*.NAME.example``."""
    own = {name: {"mx": [f"*.{name}.example"], "limits": limits} for name, limits in providers.items()}
    (stage.directory / "providers.yaml").write_text(yaml.safe_dump({"providers": own}))
    return stage.config(
        providers={"file": "providers.yaml", "shipped": False},
        pools={"default": [{"address": each} for each in ADDRESSES], **changes.pop("pools", {})},
        processes={"receivers": processes[0], "senders": processes[1]},
        **changes,
    )


async def fill(relay: Any, domains: Sequence[str], messages: int, name: str = "m") -> None:
    """Submit ``messages`` of one recipient each."""
    for number in range(messages):
        await relay.enqueue(
            "s@sender.example", [f"{name}{number}@{domains[number % len(domains)]}"], TEXT
        )


def kept(provider: SinkProvider, messages: int) -> None:
    """Nothing was over a limit, and everything came."""
    assert provider.violations == []
    assert len(provider.accepted) == messages


@pytest.mark.parametrize("processes", PROCESSES)
async def test_sessions_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """Domains that share a host share its sessions, from each address and from all, idle ones included."""
    domains = [f"d{n}.example" for n in range(8)]
    async with staged(directory) as stage:
        limits = {"sessions": 4, "sessions_per_address": 3, "messages_per_session": 5}
        big = await stage.provider("big", domains, **limits)
        free = await stage.provider("free", ["free.example"])
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, domains, 200)
            await fill(relay, ["free.example"], 20, "f")
            await empty(relay)
            assert sound(relay)
        kept(big, 200)
        kept(free, 20)
        assert big.most_sessions > 1
        assert set(big.clients) == set(ADDRESSES)


@pytest.mark.parametrize("processes", PROCESSES)
async def test_rates_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """No period of the length of a rate has more messages; most of what is allowed is used."""
    domains = [f"d{n}.example" for n in range(5)]
    async with staged(directory) as stage:
        big = await stage.provider("big", domains, rate=["10/2s"])
        async with relaying(shaped(stage, processes, {"big": {"rate": ["10/2s"]}})) as relay:
            await fill(relay, domains, 60)
            await empty(relay)
        kept(big, 60)


@pytest.mark.parametrize("processes", PROCESSES)
async def test_new_sessions_of_a_provider(directory: Path, processes: tuple[int, int]) -> None:
    """Sessions that are open are used while no new one may be opened."""
    domains = [f"d{n}.example" for n in range(3)]
    async with staged(directory) as stage:
        limits = {"connect_rate": ["2/s"], "messages_per_session": 10}
        big = await stage.provider("big", domains, ["mx.big.example"], **limits)
        async with relaying(shaped(stage, processes, {"big": limits})) as relay:
            await fill(relay, domains, 60)
            await empty(relay)
        kept(big, 60)
