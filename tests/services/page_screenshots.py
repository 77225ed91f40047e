"""Makes the pictures of docs/page.md: ``python -m tests.services.page_screenshots DIRECTORY [RECIPIENTS]``.

RECIPIENTS: of the backlog, 1,000,000 if it is missing.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.deadlines import until
from tests.kit.relay import Stage, staged
from tests.services import page_stage
from tests.services.page_stage import page_relay
from tests.services.test_page_browser import SCHEMES, browsing, path_of
from zonemta_py.relay.relay import Relay

SAMPLES = 30
TWO_PICTURES = """() => new Promise((done) => {
  const source = new EventSource(document.body.dataset.live);
  let pictures = 0;
  source.onmessage = () => { if (++pictures === 2) { source.close(); done(); } };
})"""
PER_MESSAGE = 1000


@asynccontextmanager
async def staged_relay(prepare: Callable[[Stage], Awaitable[None]]) -> AsyncIterator[Relay]:
    with tempfile.TemporaryDirectory() as directory:
        async with staged(Path(directory)) as stage:
            await prepare(stage)
            async with page_relay(stage) as relay:
                yield relay


async def shoot(relay: Relay, directory: Path, name: str, path: str = "/") -> None:
    async with browsing(relay) as (page, _):
        await page.goto(path_of(page, path))
        for width, height in ((1280, 900), (360, 780)):
            for scheme in SCHEMES:
                await page.set_viewport_size({"width": width, "height": height})
                await page.emulate_media(color_scheme=scheme)
                await page.reload()
                if path == "/":
                    await page.locator(".chart canvas").nth(1).wait_for()
                await page.evaluate(TWO_PICTURES)
                file = directory / f"{name}-{width}-{scheme}.png"
                await page.screenshot(path=file, full_page=True)
                print(file)


async def providers(directory: Path) -> None:
    """What replies of providers have changed."""
    with tempfile.TemporaryDirectory() as place:
        async with staged(Path(place)) as stage:
            await page_stage.providers(stage)
            async with page_relay(stage, **page_stage.shaping_changes(stage)) as relay:
                await page_stage.send_shaped(relay)
                await shoot(relay, directory, "providers", "/providers")


async def backlog(stage: Stage) -> None:
    await stage.receiver("inbox.example")
    page_stage.add_dead(stage)


async def fill(relay: Relay, recipients: int) -> None:
    """Messages to the provider that does not answer, and some to one that does."""
    for number in range(recipients // PER_MESSAGE):
        zone = ("bulk", "bulk", "newsletters")[number % 3]
        await page_stage.submit(relay, "dead.example", PER_MESSAGE, zone, number)
        if number % 25 == 0:
            await page_stage.submit(relay, "inbox.example", 40, "transactional", number)
            sample(relay)
        await asyncio.sleep(0)
    await until(
        lambda: "dead.example" in relay.queue.windows.zone("bulk").unreachable(), "the suspension"
    )


def sample(relay: Relay) -> None:
    """A point of the charts, as if ten seconds had passed."""
    assert relay.admin is not None
    charts = relay.admin.charts
    assert charts is not None
    charts._times_ms[:] = type(charts._times_ms)("q", (each - 10_000 for each in charts._times_ms))
    charts._sampled_s = min(charts._sampled_s, charts._sampled_s - 10)
    charts.sample()


async def main(directory: Path, recipients: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    await providers(directory)
    async with staged_relay(page_stage.idle) as relay:
        await page_stage.send_idle(relay)
        for _ in range(SAMPLES):
            sample(relay)
        await shoot(relay, directory, "idle")
    async with staged_relay(page_stage.incident) as relay:
        for number in range(SAMPLES):
            await page_stage.submit(relay, "inbox.example", 60 + number % 7, "bulk", number)
            await asyncio.sleep(0.05)  # the pace of the mail, so that the curves have one
            sample(relay)
        await page_stage.send_incident(relay)
        sample(relay)
        await shoot(relay, directory, "incident")
    async with staged_relay(backlog) as relay:
        await fill(relay, recipients)
        await shoot(relay, directory, "backlog")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000))
