"""The page of providers in a real browser: what a relay does after replies of providers, on screens of all sizes."""

from pathlib import Path

import pytest
from playwright.async_api import Page

from tests.kit.deadlines import scaled, until
from tests.kit.relay import staged
from tests.services import page_stage
from tests.services.page_stage import ATTACKER, page_relay
from tests.services.test_page_browser import CHROMIUM, assert_good, browsing, path_of

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.timeout(scaled(240)),
]


async def texts(page: Page, selector: str) -> list[str]:
    return await page.locator(selector).all_inner_texts()


async def test_what_replies_of_providers_change(directory: Path) -> None:
    """A way that is paused, one that is lowered, and one at full pace, with causes; without a reload."""
    async with staged(directory) as stage:
        await page_stage.providers(stage)
        changes = page_stage.shaping_changes(stage)
        async with page_relay(stage, **changes) as relay, browsing(relay) as (page, complaints):
            await page.get_by_role("link", name="Providers").click()
            await page.get_by_text("Nothing is limited").wait_for()
            await page_stage.send_shaped(relay)
            fussy = page.locator("tr", has=page.get_by_role("link", name="fussy"))
            paused = fussy.locator(".is-paused")
            await paused.get_by_text("rule blocked").wait_for()
            assert await paused.locator(".tag").get_attribute("title") == "rule blocked"
            assert "last blocked" in await paused.inner_text()
            lowered = fussy.locator(".is-lowered").first
            assert "of 300/m, 1 of 3 sessions" in await lowered.inner_text()
            assert "were refused or deferred" in await lowered.inner_text()
            assert (await texts(page, "tbody tr th a"))[0] == "fussy"  # first what needs attention
            big = page.locator("tr", has=page.get_by_role("link", name="bigmail"))
            full = await big.locator(".is-full", has_text="Warm-up of all mail").inner_text()
            assert "step 3 of 5" in full
            assert await texts(page, "thead th") == ["Provider", *page_stage.POOL]
            await relay.queue.suspended.suspend(f"address:{page_stage.POOL[1]}", "moves <b>away</b>")
            await fussy.get_by_text("is suspended: moves <b>away</b>").wait_for()
            await assert_good(page, "/providers")
            await page.get_by_role("link", name="fussy").click()
            await page.wait_for_url("**/providers/fussy")
            assert await page.locator("tbody tr").count() == 1
            await assert_good(page, "/providers/fussy")
            assert complaints == []


async def test_a_crowd_of_providers(directory: Path) -> None:
    """300 providers and 8 addresses: the 100 ways that need attention, how many others there are, and all of one provider."""
    async with staged(directory) as stage, page_relay(stage) as relay:
        page_stage.crowd(relay, 300, 8)
        states = page_stage.states_of(relay, ATTACKER)
        await until(lambda: states == {"lowered", "full"}, "the replies")
        async with browsing(relay) as (page, complaints):
            await page.goto(path_of(page, "/providers"))
            await page.get_by_text("2,300 others are not shown").wait_for()
            assert await page.locator(".path").count() == 100
            lowered = await page.locator(".is-lowered").count()
            assert lowered == 48
            assert await page.locator("tr:nth-child(-n+48) .is-lowered").count() == 48
            await page.get_by_text("7 other addresses").first.wait_for()
            assert await page.locator(".path .address").first.is_visible()
            await assert_good(page, "/providers")
            await page.get_by_role("link", name=ATTACKER).click()
            await page.locator("tbody th", has_text=ATTACKER).wait_for()
            await page.wait_for_url("**/providers/*")
            assert await page.locator(".path").count() == 8
            assert (await page.title()).startswith(ATTACKER)  # a text, as in the table
            assert await page.locator("img").count() == 0
            await assert_good(page, "a provider")
            assert complaints == []
