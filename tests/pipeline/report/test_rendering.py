"""The HTML file: its size, what it says, and that texts of others stay text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.pipeline.report.rows import HOSTILE, hours, report_rows
from zonemta_py.pipeline.report.page import PageHeader, PageRows, page_content, render

HEADER = PageHeader("var/events", 1_234_567, 168, ())
SIZE_MAX = 200_000
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "section", "article", "nav", "div", "p", "ul", "li",
    "i", "b", "a", "span", "h1", "h2", "h3", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td",
    "svg", "line", "path", "rect", "text",
}  # fmt: skip


class Elements(HTMLParser):
    """Counts the elements, and collects their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def page(rows: PageRows, header: PageHeader = HEADER) -> str:
    return render(page_content(header, rows))


def test_a_year_of_hours_is_small() -> None:
    """With every table full, and small charts of all providers."""
    names = tuple(f"provider-with-a-name-{n}.example" for n in range(12))
    text = page(report_rows(365, names))
    assert text.count("<article>") == 12
    assert len(text.encode()) < SIZE_MAX
    assert "Attempts by day" in text
    assert "busiest providers by week" in text


def test_hours_up_to_ten_days() -> None:
    assert "Attempts by hour" in page(report_rows(10))
    assert "Attempts by day" in page(report_rows(11))
    one = page(report_rows(1))
    assert "Attempts by hour" in one
    assert "<article>" not in one, "a trend of one day"


def test_the_header() -> None:
    text = page(report_rows(7))
    for part in (
        "<h1>Delivery report</h1>", "<dd>var/events</dd>", "<dd>2026-11-01 00:00 to 2026-11-08 00:00 UTC</dd>",
        "<dd>1,234,567</dd>", "<dd>168</dd>", "event log: no damage found", "<b>151,200</b>recipients delivered", "<b>4,321</b>complaints",
    ):  # fmt: skip
        assert part in text
    unknown = page(report_rows(7), replace(HEADER, records=None, segments=None))
    assert "Records read" not in unknown
    assert "Segments" not in unknown


def test_damage() -> None:
    text = page(report_rows(7), replace(HEADER, damage=[f"segment {n} is cut" for n in range(40)]))
    assert "event log: 40 damaged segments or gaps" in text
    assert "<h2>The event log is damaged</h2>" in text
    assert "The first 25 of 40 are shown." in text
    assert text.index("segment 0 is cut") < text.index("recipients delivered")
    assert "no damage found" not in text
    assert "1 damaged segment or gap<" in page(report_rows(7), replace(HEADER, damage=["a gap"]))


def test_complaints() -> None:
    """A rate is per 1,000 delivered; without the table the page does not mention them."""
    text = page(report_rows(7))
    assert "<td>2,000</td><td>2,160,000</td><td>0.93</td>" in text
    assert "no campaign</th><td>214</td><td>-</td><td>-</td>" in text
    assert "omplaint" not in page(report_rows(7, complaints=False))
    none = page(replace(report_rows(7), complaints=()))
    assert "<b>0</b>complaints" in none
    assert "No complaints." in none


def test_all_tables() -> None:
    titles = re.findall("<h2>(.*?)</h2>", page(report_rows(7)))
    assert titles == [
        "Attempts by hour", "Trends", "Complaints by provider", "Complaints by campaign", "Zones", "Providers", "Recipient domains",
        "Sending addresses", "Campaigns", "Tenants", "Tags", "Warm-up", "Anomalous hours", "Reasons of failures", "Replies to failures",
    ]  # fmt: skip


def test_a_note_says_when_a_table_is_limited() -> None:
    rows = report_rows(7)
    assert "The 25 with most attempts." in page(rows)
    few = [row for row in rows.rates if row["dimension"] in ("all", "provider")]
    assert "The 25 with most attempts." not in page(replace(rows, rates=few))


def test_a_report_without_rows() -> None:
    text = page(PageRows((), (), (), (), (), ()))
    assert text.count("Nothing to show.") == 3
    assert "<svg" not in text


def test_a_long_warm_up() -> None:
    """Days above the schedule are not left out."""
    rows = report_rows(7)
    assert rows.warmup is not None
    kept = [{**rows.warmup[-1], "address": f"203.0.113.{n}"} for n in range(150)]
    text = page(replace(rows, warmup=[*kept, {**rows.warmup[0], "address": "203.0.113.200"}]))
    assert "150 of 151 days within it. 100 are shown" in text
    assert "203.0.113.200" in text


def test_a_wrong_clock() -> None:
    """It makes a long period, not a large page."""
    rows = report_rows(2)
    early = {**hours(1)[0], "begins": hours(1)[0]["begins"].replace(year=1970)}
    text = page(replace(rows, hours=[early, *rows.hours]))
    assert "Attempts by week" in text
    assert len(text.encode()) < SIZE_MAX


def test_hostile_names() -> None:
    """They add no element and no attribute, and are shown word for word."""
    clean = Elements(page(report_rows(7)))
    header = PageHeader(HOSTILE[1], 1, 1, HOSTILE)
    found = Elements(page(report_rows(7, HOSTILE), header))
    assert set(found.names) <= ELEMENTS
    assert found.attributes == clean.attributes
    assert found.names.count("style") == 1
    for text in HOSTILE:
        assert found.text.count(text) > 5
