"""The page from tables of Spark: which rows it takes, and how often it asks for them."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNTS = "delivered long, deferred long, bounced long, expired long"
SCHEMAS = {
    "rates": f"dimension string, value string, {COUNTS}, attempts long, delivery_rate double, bounce_rate double, deferral_rate double, "
    "p50_ms long, p95_ms long, p99_ms long",
    "hours": f"hour timestamp, zone string, {COUNTS}",
    "days": f"day date, address string, provider string, {COUNTS}",
    "replies": "provider string, event string, phase string, code int, status string, kind string, reason string, template string, "
    "count long, example string",
    "anomalies": "provider string, hour timestamp, measure string, rate double, usual double, score double, attempts long, "
    "replies array<struct<count: long, reason: string, template: string>>",
    "warmup": "day date, address string, provider string, allowed long, sent long, over long, kept boolean",
    "complaints": "day date, provider string, campaign string, complaints long",
}  # fmt: skip


def rate(dimension: str, value: str, delivered: int) -> tuple[Any, ...]:
    return (dimension, value, delivered, 0, 0, 0, delivered, 1.0, 0.0, 0.0, 100, 200, 300)


def tables(spark: "SparkSession", **rows: list[tuple[Any, ...]]) -> "Mapping[str, DataFrame]":
    """The required tables, empty unless they are named, and those that are named."""
    required = {name: [] for name in ("rates", "hours", "days", "replies", "anomalies")}
    return {
        name: spark.createDataFrame(found, SCHEMAS[name]) for name, found in {**required, **rows}.items()
    }


def made(found: "Mapping[str, DataFrame]") -> str:
    from zonemta_py.pipeline.jobs.report_page import PageHeader, page

    return page(PageHeader("events", None, 3, ()), found)


def section(text: str, title: str) -> str:
    match = re.search(f"<h2>{title}</h2>.*?</section>", text, re.DOTALL)
    assert match, title
    return match[0]


def test_each_table_is_collected_once(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Each query takes a tenth of a second and more, however few rows it returns."""
    first, last = datetime(2026, 11, 1, 5, tzinfo=UTC), datetime(2026, 11, 3, 6, tzinfo=UTC)
    found = tables(
        spark,
        rates=[rate("all", "", 300), rate("provider", "google", 200), rate("provider", "gmx", 100)],
        hours=[(first, "a", 100, 7, 0, 0), (first, "b", 50, 0, 1, 2), (last, "a", 150, 0, 0, 0)],
        days=[
            (date(2026, 11, 1), address, provider, 75, 0, 0, 0)
            for address in ("192.0.2.1", "192.0.2.2")
            for provider in ("google", "gmx", "not-in-rates.example")
        ],
        replies=[
            ("google", "deferred", "rcpt", 450, "4.7.1", f"kind {n}", "rate limited", "come back <*>", n, "x")
            for n in range(1, 50)
        ],
        anomalies=[("google", last, "deferral", 0.5, 0.1, 9.0, 100, [(7, "rate limited", None)])],
        warmup=[(date(2026, 11, 1), "192.0.2.1", "", 100, 150, 50, False)],
        complaints=[(date(2026, 11, 2), "google", "june", 2)],
    )  # fmt: skip
    kind = type(found["rates"])
    collect, calls = kind.collect, []

    def counted(frame: "DataFrame") -> Any:
        calls.append(frame)
        return collect(frame)

    monkeypatch.setattr(kind, "collect", counted)
    text = made(found)
    assert len(calls) == len(found) == 7
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


def test_the_busiest_of_each_dimension(spark: "SparkSession") -> None:
    """25 of each, also where mail without a value has most attempts."""
    rates = [rate("all", "", 1000), rate("campaign", "", 900)]
    rates += [rate("domain", f"d{n:02}.example", 100 - n) for n in range(30)]
    rates += [rate("campaign", f"c{n:02}", 100 - n) for n in range(26)]
    text = made(tables(spark, rates=rates))
    names = re.findall('<th scope="row" class="t">(.*?)</th>', text)
    assert names == [f"d{n:02}.example" for n in range(25)] + [f"c{n:02}" for n in range(25)]
    assert "<b>1,000</b>recipients delivered" in text
    assert "omplaint" not in text


def test_rates_of_complaints(spark: "SparkSession") -> None:
    """Per 1,000 delivered, also of providers that are not among the busiest, and of mail without a campaign."""
    day = date(2026, 11, 1)
    text = made(
        tables(
            spark,
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
    empty = made(tables(spark, rates=[rate("all", "", 1)], complaints=[]))
    assert "<b>0</b>complaints" in empty
