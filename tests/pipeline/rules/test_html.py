"""The page of a report, also in a real browser."""

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
    """The document in the browser after loading, with the effects of any script."""
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
         f"--user-data-dir={path.parent / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=scaled(60), check=True,
    )  # fmt: skip
    return done.stdout


def test_in_a_browser(browser: str, tmp_path: Path) -> None:
    """Text of peers stays text; the table has its rows and the chart its bars."""
    evil = '<script>document.title = "taken over"</script><img src=x onerror=alert(1)>'
    sections = [
        html.cards([html.Figure("recipients delivered", "1,234")]),
        html.bar_chart(
            "By hour", "attempts", [html.StackedBar(f"{n} h", n, 1, 2) for n in range(1, 25)]
        ),
        html.table("Replies", "replies", ("reply", "count"), [(evil, "3"), ("ok", "1")]),
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


def test_text_is_escaped() -> None:
    """Titles, notes, cells and labels of peers do not become markup."""
    evil = "<i>&"
    sections = [
        html.cards([html.Figure(evil, evil)]),
        html.bar_chart(evil, evil, [html.StackedBar(evil, 1, 0, 2)]),
        html.table(evil, evil, (evil,), [(evil,)]),
    ]
    for section in sections:
        assert evil not in section
        assert "&lt;i&gt;&amp;" in section
    assert evil not in html.page(evil, evil, [])


def test_empty_tables_and_charts() -> None:
    assert "Nothing to show." in html.table("Replies", "", ("reply",), [])
    assert html.bar_chart("By hour", "", [html.StackedBar("1 h", 0, 0, 0)]) == ""
