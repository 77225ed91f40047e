"""The page in a real browser: what it shows, keys, screens of all sizes, and that nothing a stranger wrote is executed.

``python -m tests.services.page_screenshots`` makes the pictures of docs/page.md.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.relay import staged
from tests.services import page_stage
from tests.services.page_stage import page_relay, url_of
from zonemta_py.relay.relay import Relay

pytest.importorskip("playwright")
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

from zonemta_py.queue.upkeep.operator import Operator

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTHS = ((1280, 900), (768, 1024), (360, 780))
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.timeout(scaled(240)),
]


@asynccontextmanager
async def browsing(relay: Relay) -> AsyncIterator[tuple[Page, list[str]]]:
    """A browser that is logged in, and what it complains about."""
    complaints: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(scaled(20) * 1000)
        page.on("console", lambda each: complaints.append(each.text) if each.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(url_of(relay))
        try:
            yield page, complaints
        finally:
            await browser.close()


async def assert_good(page: Page, where: str) -> None:
    """At every size, light and dark: nothing that axe finds serious, nothing wider than the screen."""
    for width, height in WIDTHS:
        await page.set_viewport_size({"width": width, "height": height})
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(overflow) == 0, f"{where}: too wide at {width}"
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)
            found = (await Axe().run(page)).response["violations"]
            serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
            assert serious == [], f"{where} at {width}, {scheme}"


async def test_an_idle_relay(directory: Path) -> None:
    async with staged(directory) as stage:
        await page_stage.idle(stage)
        async with page_relay(stage) as relay, browsing(relay) as (page, complaints):
            await page_stage.send_idle(relay)
            await assert_good(page, "/")
            assert await page.locator(".readiness").inner_text() != ""
            assert await page.get_by_role("link", name="newsletters").count() == 1  # also without mail
            for path in ("/tenants", "/holds", "/search"):
                await page.goto(path_of(page, path))
                await assert_good(page, path)
            await page.get_by_role("button", name="Log out").click()
            await page.wait_for_url("**/login")
            await assert_good(page, "/login")
            assert complaints == []


def path_of(page: Page, path: str) -> str:
    return "/".join(page.url.split("/")[:3]) + path


async def test_an_incident(directory: Path) -> None:
    """What happens is on the screen without a reload, with the reasons; texts of strangers are texts."""
    async with staged(directory) as stage:
        await page_stage.incident(stage)
        async with page_relay(stage) as relay, browsing(relay) as (page, complaints):
            await page_stage.send_incident(relay)
            row = page.locator("tr", has_text="throttles.example").first
            await row.get_by_text(page_stage.ATTACK).wait_for()
            await page.locator("tr", has_text="blocks.example").get_by_text("S3140").first.wait_for()
            assert "unreachable" in await row.inner_text()
            await assert_good(page, "/")
            for path in ("/zones/bulk", "/holds", "/tenants", "/tenants/acme"):
                await page.goto(path_of(page, path))
                await assert_good(page, path)
                assert "attacked" not in await page.title()
            await page.goto(path_of(page, "/holds"))
            await page.get_by_text("complaints <b>rise</b>").wait_for()
            assert complaints == []


async def test_a_backlog_is_shown_as_it_shrinks(directory: Path) -> None:
    """The table changes in place: an element that has the focus keeps it."""
    async with staged(directory) as stage:
        page_stage.add_dead(stage)
        async with page_relay(stage) as relay, browsing(relay) as (page, complaints):
            await page_stage.send_backlog(relay, 30)
            await page.get_by_text("3,000", exact=True).first.wait_for()
            link = page.get_by_role("rowheader").get_by_role("link", name="bulk").last
            await link.focus()
            messages = await asyncio.to_thread(list, _messages(relay))
            await Operator(relay.queue).delete(messages[0], None)
            await page.get_by_text("2,900", exact=True).first.wait_for()
            assert await page.evaluate("document.activeElement.textContent") == "bulk"
            await assert_good(page, "/")
            assert complaints == []


def _messages(relay: Relay) -> list[str]:
    from zonemta_py.queue.upkeep.inspect import recipient_rows

    return sorted({row["message"] for row in recipient_rows(relay.queue.store, "bulk")})


async def test_keys_and_forms(directory: Path) -> None:
    """Without a mouse: find a message, read its timeline, hold it, release it."""
    async with staged(directory) as stage:
        page_stage.add_dead(stage)
        async with page_relay(stage) as relay, browsing(relay) as (page, complaints):
            message = await page_stage.submit(relay, "dead.example", 2, "bulk", 7)
            await until(lambda: bool(relay.queue.traffic.failures), "the first attempt")
            await page.keyboard.press("/")
            await page.keyboard.type("user1@dead.example")
            await page.keyboard.press("Enter")
            found = page.get_by_role("link", name=message)
            await found.focus()
            await page.keyboard.press("Enter")
            await page.get_by_text("Connection refused").first.wait_for()
            await page.get_by_role("button", name="Hold").press("Enter")
            await page.get_by_text("hold: held 2, in flight 0").wait_for()
            assert await page.get_by_role("cell", name="held", exact=True).count() == 2
            await assert_good(page, "/messages")
            await page.get_by_role("button", name="Release").press("Enter")
            await page.get_by_text("release: released 2").wait_for()
            assert await page.get_by_text("release: released 2").count() == 1
            await page.reload()
            assert await page.get_by_text("release: released 2").count() == 0
            assert complaints == []


async def test_charts_and_a_relay_that_is_gone(directory: Path) -> None:
    async with staged(directory) as stage:
        await page_stage.idle(stage)
        async with page_relay(stage) as relay, browsing(relay) as (page, complaints):
            await page.get_by_text("The first points come").first.wait_for()
            await page_stage.send_idle(relay)
            assert relay.admin is not None
            assert relay.admin.charts is not None
            for _ in range(3):
                relay.admin.charts.sample()
            await page.get_by_role("button", name="2 h").click()
            await page.locator(".chart canvas").nth(1).wait_for()
            assert complaints == []
            await relay.stop()
            await page.locator("#freshness", has_text="The relay does not answer").wait_for()
