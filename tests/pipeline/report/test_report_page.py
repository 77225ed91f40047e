"""The page from the tables of a report: which rows it takes."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyarrow as pa

pytest.importorskip("pyspark")

COUNTS = "delivered deferred bounced expired"
COLUMNS = {
    "rates": f"dimension value {COUNTS} attempts delivery_rate bounce_rate deferral_rate p50_ms p95_ms p99_ms",
    "hours": f"hour zone {COUNTS}",
    "days": f"day address provider {COUNTS}",
    "replies": "provider event phase code status kind reason template count example",
    "anomalies": "provider hour measure rate usual score attempts replies",
    "warmup": "day address provider allowed sent over kept",
    "complaints": "day provider campaign complaints",
}
TEXTS = frozenset(
    [
        "dimension",
        "value",
        "zone",
        "address",
        "provider",
        "event",
        "phase",
        "status",
        "kind",
        "reason",
        "template",
        "example",
        "measure",
        "campaign",
    ]
)


def rate(dimension: str, value: str, delivered: int) -> tuple[Any, ...]:
    return (dimension, value, delivered, 0, 0, 0, delivered, 1.0, 0.0, 0.0, 100, 200, 300)


def tables(**rows: list[tuple[Any, ...]]) -> "Mapping[str, pa.Table]":
    """The required tables, empty unless they are named, and those that are named."""
    import pyarrow as pa

    required: dict[str, list[Any]] = {
        name: [] for name in ("rates", "hours", "days", "replies", "anomalies")
    }
    found = {}
    for name, values in {**required, **rows}.items():
        columns = COLUMNS[name].split()
        cells = zip(*values, strict=True) if values else [()] * len(columns)
        found[name] = pa.table(
            {each: pa.array(column, kind_of(each)) for each, column in zip(columns, cells, strict=True)}
        )
    return found


def kind_of(column: str) -> "pa.DataType | None":
    """None: that of its values."""
    import pyarrow as pa

    kinds = {"hour": pa.timestamp("us", "UTC"), "day": pa.date32(), "replies": None, "kept": pa.bool_()}
    if column in kinds:
        return kinds[column]
    is_share = column.endswith(("rate", "usual", "score"))
    return pa.string() if column in TEXTS else pa.float64() if is_share else pa.int64()


def made(found: "Mapping[str, pa.Table]") -> str:
    from zonemta_py.pipeline.report.job import PageHeader, page

    return page(PageHeader("events", None, 3, ()), found)


def section(text: str, title: str) -> str:
    match = re.search(f"<h2>{title}</h2>.*?</section>", text, re.DOTALL)
    assert match, title
    return match[0]


def test_each_table_is_shown() -> None:
    first, last = datetime(2026, 11, 1, 5, tzinfo=UTC), datetime(2026, 11, 3, 6, tzinfo=UTC)
    found = tables(
        rates=[rate("all", "", 300), rate("provider", "google", 200), rate("provider", "gmx", 100)],
        hours=[(first, "a", 100, 7, 0, 0), (first, "b", 50, 0, 1, 2), (last, "a", 150, 0, 0, 0)],
        days=[
            (date(2026, 11, 1), address, provider, 75, 0, 0, 0)
            for address in ("192.0.2.1", "192.0.2.2")
            for provider in ("google", "gmx", "not-in-rates.example")
        ],
        replies=[
            ("google", "deferred", "rcpt", 450, "4.7.1", f"kind {n}", "rate_limited", "come back <*>", n, "x")
            for n in range(1, 50)
        ],
        anomalies=[("google", last, "deferral", 0.5, 0.1, 9.0, 100, [{"count": 7, "reason": "rate_limited", "template": None}])],
        warmup=[(date(2026, 11, 1), "192.0.2.1", "", 100, 150, 50, False)],
        complaints=[(date(2026, 11, 2), "google", "june", 2)],
    )  # fmt: skip
    text = made(found)
    assert "2026-11-01 05:00 to 2026-11-03 07:00 UTC" in text
    assert "1 Nov 05:00: 150 delivered, 7 deferred, 3 failed" in text
    assert re.findall("<h3>(.*?)</h3>", text) == ["google", "gmx"]
    assert "attempts<b>150</b>" in section(text, "Trends")
    assert "<td>1,225</td>" in section(text, "Reasons of failures")
    assert section(text, "Replies to failures").count("<td>1,225</td>") == 1
    assert "2026-11-03 06:00" in section(text, "Anomalous hours")
    assert "7 of: no reply" in section(text, "Anomalous hours")
    assert "0 of 1 days within it" in section(text, "Warm-up")
    assert "Records read" not in text


def test_the_busiest_of_each_dimension() -> None:
    """25 of each, also where mail without a value has most attempts."""
    rates = [rate("all", "", 1000), rate("campaign", "", 900)]
    rates += [rate("domain", f"d{n:02}.example", 100 - n) for n in range(30)]
    rates += [rate("campaign", f"c{n:02}", 100 - n) for n in range(26)]
    text = made(tables(rates=rates))
    names = re.findall('<th scope="row" class="t">(.*?)</th>', text)
    assert names == [f"d{n:02}.example" for n in range(25)] + [f"c{n:02}" for n in range(25)]
    assert "<b>1,000</b>recipients delivered" in text
    assert "omplaint" not in text


def test_rates_of_complaints() -> None:
    """Per 1,000 delivered, also of providers that are not among the busiest, and of mail without a campaign."""
    day = date(2026, 11, 1)
    text = made(
        tables(
            rates=[
                rate("all", "", 10_000), rate("campaign", "", 500), rate("campaign", "june", 8000),
                *(rate("provider", f"p{n:02}.example", 5000 - n) for n in range(40)),
            ],
            complaints=[
                (day, "p39.example", "june", 3), (day, "p39.example", None, 1), (date(2026, 11, 2), "elsewhere.example", "june", 1),
            ],
        )
    )  # fmt: skip
    assert "<b>5</b>complaints" in text
    providers = section(text, "Complaints by provider")
    assert "p39.example</th><td>4</td><td>4,961</td><td>0.81</td>" in providers
    assert "elsewhere.example</th><td>1</td><td>-</td><td>-</td>" in providers
    assert providers.index("p39") < providers.index("elsewhere")
    campaigns = section(text, "Complaints by campaign")
    assert "june</th><td>4</td><td>8,000</td><td>0.50</td>" in campaigns
    assert "no campaign</th><td>1</td><td>500</td><td>2.00</td>" in campaigns
    assert "p39" not in section(text, "Providers")
    empty = made(tables(rates=[rate("all", "", 1)], complaints=[]))
    assert "<b>0</b>complaints" in empty
