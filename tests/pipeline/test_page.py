"""The report in a real browser: what is drawn, that nothing runs in it, and that it asks nobody for anything."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled
from zonemta_py.pipeline.rules import html

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser here (Debian: apt-get install chromium)")
    return found


def shown(browser: str, path: Path) -> str:
    """The document as the browser has it when it is done, scripts included if there were any."""
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
         f"--user-data-dir={path.parent / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=scaled(60), check=True,
    )  # fmt: skip
    return done.stdout


def test_in_a_browser(browser: str, tmp_path: Path) -> None:
    """Text of peers stays text; a table has its rows, a chart its bars."""
    evil = '<script>document.title = "taken over"</script><img src=x onerror=alert(1)>'
    sections = [
        html.cards([html.Figure("recipients delivered", "1,234")]),
        html.stacks("By hour", "attempts", [html.Stack(f"{n} h", n, 1, 2) for n in range(1, 25)]),
        html.table("What peers said", "replies", ("reply", "count"), [(evil, "3"), ("ok", "1")]),
    ]
    path = tmp_path / "report.html"
    path.write_text(html.page("Delivery report", f"from {evil}", sections), encoding="utf-8")
    found = shown(browser, path)
    assert "<title>Delivery report</title>" in found
    assert "<script" not in found
    assert "<img" not in found
    assert len(re.findall("<rect ", found)) == 24 * 3
    assert len(re.findall("<tr>", found)) == 3
    assert not re.findall(r"""(?:src|href)=["']?http|url\(http|@import""", found)
    assert "1,234" in found
