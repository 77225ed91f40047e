"""The page in a real browser: screens of all sizes, light and dark, with names that try to be markup."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.kit.deadlines import scaled
from tests.pipeline.report.rows import HOSTILE, report_rows
from zonemta_py.pipeline.report.page import PageHeader, PageRows, page_content, render

pytest.importorskip("playwright")
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, async_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Colours do not depend on the width.
SCREENS: tuple[tuple[int, Literal["light", "dark"]], ...] = (
    (360, "light"),
    (768, "dark"),
    (1280, "light"),
)
HEADER = PageHeader(HOSTILE[1] + HOSTILE[4], 1_234_567, 168, HOSTILE)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.timeout(scaled(240)),
]


@asynccontextmanager
async def shown(
    rows: PageRows, header: PageHeader, directory: Path
) -> AsyncIterator[tuple[Page, list[str]]]:
    """The page in a browser, and what it loads beside the file, or complains about."""
    path = directory / "report.html"
    path.write_text(render(page_content(header, rows)), encoding="utf-8")
    problems: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(scaled(20) * 1000)
        page.on("console", lambda each: problems.append(each.text))
        page.on("dialog", lambda each: problems.append(each.message))
        page.on("request", lambda each: problems.append(each.url) if each.url != path.as_uri() else None)
        await page.goto(path.as_uri())
        try:
            yield page, problems
        finally:
            await browser.close()


@pytest.mark.parametrize(("days", "names"), [(7, ()), (45, HOSTILE)], ids=["week", "hostile"])
async def test_every_screen(days: int, names: tuple[str, ...], tmp_path: Path) -> None:
    """Nothing that axe finds serious, nothing wider than the screen; texts stay texts."""
    header = HEADER if names else replace(HEADER, events="var/events", damage=())
    async with shown(report_rows(days, names), header, tmp_path) as (page, problems):
        for width, scheme in SCREENS:
            await page.set_viewport_size({"width": width, "height": 800})
            root = "document.documentElement"
            assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, width
            await page.emulate_media(color_scheme=scheme)
            found = (await Axe().run(page)).response["violations"]
            serious = [each["id"] for each in found if each["impact"] in ("serious", "critical")]
            assert serious == [], f"at {width}, {scheme}"
        assert await page.title() == "Delivery report"
        assert await page.locator("body script, img, body style").count() == 0
        for text in names:
            assert await page.get_by_role("rowheader", name=text, exact=True).count() > 5
        assert problems == []


async def test_charts_are_drawn(tmp_path: Path) -> None:
    """Bars fill their box, text is readable on a small screen, and the box scrolls instead of the page."""
    async with shown(report_rows(7), replace(HEADER, damage=()), tmp_path) as (page, _):
        await page.set_viewport_size({"width": 360, "height": 800})
        box = page.get_by_role("region", name="Chart of attempts by hour")
        assert await box.evaluate("each => each.scrollWidth > each.clientWidth")
        sizes = await page.locator("#attempts text").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect().height)"
        )
        assert min(sizes) >= 11
        bars = await page.locator("path.delivered").first.bounding_box()
        whole = await page.locator("svg.bars > svg").bounding_box()
        assert bars is not None
        assert whole is not None
        assert whole["height"] == 200
        assert 0.9 * whole["width"] < bars["width"] <= whole["width"]
        assert await page.locator("article").count() == 8


async def test_links_to_sections(tmp_path: Path) -> None:
    async with shown(report_rows(7), HEADER, tmp_path) as (page, problems):
        links = page.get_by_role("navigation").get_by_role("link")
        targets = await links.evaluate_all("all => all.map(each => each.getAttribute('href'))")
        assert len(targets) == 15
        for target in targets:
            assert await page.locator(target).count() == 1
        assert problems == []
