"""Makes the pictures of the week in docs/deliverability.md: ``python -m tests.services.page_week DIRECTORY``.

A relay with the files of that page is started at moments of the week, on a clock that is set to them, and finds what it
stored before. It sends to a provider that blocks the new address on the third day.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.end_to_end.test_deliverability import FILES, at
from tests.kit.relay import Stage, empty, relaying, staged
from tests.services.test_page_browser import browsing, path_of
from zonemta_py.config.load import load_config
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.provider import SinkProvider

FIRST = 41  # the last part of the first address of loopback
NEW = "127.0.0.43"
REPLY = "550 5.7.1 your IP is blocked for its bad reputation"
PER_MESSAGE = 20
WIDTH = 760


class Moment(NamedTuple):
    """When a picture is taken, and how many recipients get mail just before; ``blocks``: of the new address."""

    name: str
    time_ms: int
    recipients: int
    blocks: bool = False


MOMENTS = [
    Moment("day-1", at(1, 14), 4000),
    Moment("day-3-blocked", at(3, 10), 2000, blocks=True),
    Moment("day-3-again", at(3, 12, 15), 500),
    Moment("day-4", at(4, 14), 8000),
    Moment("day-6", at(6, 14), 15000),
]


def write_files(stage: Stage) -> Path:
    """The files of the page, with addresses of loopback."""
    for name, text in FILES.items():
        (stage.directory / name).write_text(text.replace("192.0.2.20", NEW))
    own: dict[str, Any] = yaml.safe_load(FILES["relay.yaml"])
    last = iter(range(FIRST, FIRST + 9))
    for pool in own["pools"].values():
        for each in pool:
            each["address"] = f"127.0.0.{next(last)}"
            if each["address"] == NEW:
                each["weight"] = 100  # so that its schedule limits it, whatever is drawn
    kept = {key: own[key] for key in ("pools", "providers", "shaping", "warmup")}
    stage.config(admin={"address": "127.0.0.1:0"}, processes={"receivers": 0, "senders": 0}, **kept)
    return stage.directory / "zonemta.yaml"


def set_clock(time_ms: int) -> None:
    """Let the clock of this process go on from ``time_ms``."""
    began_ns = time.monotonic_ns()
    time.time_ns = lambda: time_ms * 1_000_000 + time.monotonic_ns() - began_ns


async def send(relay: Relay, recipients: int, name: str) -> None:
    for number in range(0, recipients, PER_MESSAGE):
        addresses = [f"{name}-{number + each}@d.example" for each in range(PER_MESSAGE)]
        await relay.enqueue("news@sender.example", addresses, b"Subject: news\r\n\r\nHello\r\n")
    await empty(relay)


async def shoot(relay: Relay, file: Path) -> None:
    async with browsing(relay) as (page, _):
        await page.set_viewport_size({"width": WIDTH, "height": 900})
        await page.goto(path_of(page, "/providers/google"))
        await page.locator(".path").first.wait_for()
        await page.locator("main").screenshot(path=file)


@asynccontextmanager
async def week(place: Path) -> AsyncIterator[tuple[Path, SinkProvider]]:
    """The configuration, and the provider."""
    async with staged(place) as stage:
        google = await stage.provider("google", ["d.example"], ["mx.google.com"])
        await stage.receiver("sender.example")
        yield write_files(stage), google


@asynccontextmanager
async def relay_at(moment: Moment, config: Path, google: SinkProvider) -> AsyncIterator[Relay]:
    """A relay at that moment, which has sent what belongs to it."""
    set_clock(moment.time_ms)
    async with relaying(load_config(config)) as relay:
        if moment.blocks:
            google.block(NEW, REPLY)
        await send(relay, moment.recipients, moment.name)
        google.unblock(NEW)
        yield relay


async def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        async with week(Path(place)) as (config, google):
            for moment in MOMENTS:
                async with relay_at(moment, config, google) as relay:
                    await shoot(relay, directory / f"week-{moment.name}.png")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
