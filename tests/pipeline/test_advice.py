"""What the events speak for: settings with evidence, in words that the relay understands."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.segments import delivered, write_segment
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Zone
from zonemta_py.pipeline.rules.advice import Observed, advise, as_yaml

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN_MS = 1_800_000_000_000 // 60_000 * 60_000


def seen(**changes: Any) -> Observed:
    values: dict[str, Any] = {
        "provider": "big.example", "domains": ["big.example"], "zones": ["default"], "transactions": 10_000, "limited": 0,
        "limited_sessions": 0, "said": "", "clean_per_minute": 480.0, "limited_per_minute": 900.0, "clean_sessions": 7.6,
        "busiest_sessions": 8.0, "greylisted": 0, "greylist_s": None, "greylist_through": 0, **changes,
    }  # fmt: skip
    return Observed(**values)


def keys(observed: Observed, zone: Zone | None = None) -> dict[str, object]:
    return {line.key: line.value for line in advise(observed, zone)}


def test_nothing_without_a_reason() -> None:
    assert keys(seen()) == {}
    assert keys(seen(limited=19)) == {}, "too few to make a case"
    assert keys(seen(limited=40)) == {}, "too small a share"
    assert keys(seen(limited=100, clean_per_minute=None)) == {}, "no minute to learn from"
    assert keys(seen(greylisted=100, greylist_s=50.0, greylist_through=5)) == {}


def test_limits() -> None:
    assert keys(seen(limited=100, said="slow down")) == {"rate": "480/m"}
    assert keys(seen(limited=100, limited_sessions=90)) == {"connections_per_domain": 7}
    assert keys(seen(limited=100, limited_sessions=90, clean_sessions=0.2)) == {
        "connections_per_domain": 1
    }


def test_patience() -> None:
    found = keys(seen(greylisted=900, greylist_s=400.0, greylist_through=800))
    assert found == {"retry": {"delays": ["7m", "480s", "1500s", "4500s", "7200s", "14400s"]}}


def test_more_sessions() -> None:
    zone = Zone(connections_per_domain=8)
    assert keys(seen(), zone) == {"connections_per_domain": 16}
    assert keys(seen(limited=1), zone) == {}, "somebody said something"
    assert keys(seen(busiest_sessions=6.0), zone) == {}, "there was room"


@pytest.mark.parametrize(
    "said", ["slow\r\n# down", "ünï" * 100, '"quoted": {yes}', "\0\u2028\x85\x1b[1m"]
)
def test_the_relay_understands_it(said: str) -> None:
    """Whatever a peer says stays in its comment."""
    found = seen(limited=100, said=said, greylisted=99, greylist_s=90.0, greylist_through=90, domains=["b.example", "xn--c.example"])  # fmt: skip
    text = as_yaml([(found, advise(found, None))], "made by a test")
    config = parse_config(text, Path("r.yaml"))
    assert set(config.zones) == {"default", "big-example"}
    zone = config.zones["big-example"]
    assert zone.rate is not None
    assert (zone.rate.events, zone.rate.per_s, zone.retry.delays[0]) == (480, 60.0, 120.0)
    assert [(r.recipient_domain, r.zone) for r in config.routing] == [("b.example", "big-example"), ("xn--c.example", "big-example")]  # fmt: skip
    assert "100 of 10,000 transactions (1.0 %)" in text
    assert parse_config(as_yaml([], "none"), Path("r.yaml")).zones.keys() == {"default"}


def quiet(text: str) -> None:
    """No progress."""


def minutes(rates: list[tuple[int, int]], said: str, first: int, provider: str) -> list[dict[str, Any]]:
    """For each minute so many deliveries and so many deferrals with ``said``; a transaction takes a second."""
    found = []
    for minute, (good, bad) in enumerate(rates):
        for n in range(good + bad):
            seq = first + 1000 * minute + n
            late = {"event": "deferred", "code": 421, "status": "4.7.0", "reply": said}
            found.append(
                delivered(
                    seq,
                    time_ms=BEGIN_MS + 60_000 * minute + n,
                    domain=provider,
                    recipient=f"r{seq}@{provider}",
                    duration_ms=1000,
                    **(late if n >= good else {}),
                )
            )
    return found


def test_from_events(spark: "SparkSession", tmp_path: Path) -> None:
    """One provider limits the rate, one sessions, one greylists, one says nothing."""
    from zonemta_py.pipeline.jobs.recommend import Request, recommend

    rates = [(100, 0)] * 9 + [(300, 60)] * 3
    records = minutes(rates, "Rate limit exceeded, 5551234", 0, "fast.example")
    records += minutes(rates, "Too many concurrent connections", 100_000, "narrow.example")
    records += minutes([(50, 0)] * 3, "", 200_000, "calm.example")
    for n in range(40):
        whom = {"message": f"g{n}", "recipient": f"g{n}@grey.example", "domain": "grey.example"}
        refused = {"event": "deferred", "code": 450, "status": "4.7.1", "reply": "Greylisted"}
        records.append(delivered(300_000 + n, time_ms=BEGIN_MS + n, **whom, **refused))
        records.append(delivered(400_000 + n, time_ms=BEGIN_MS + 200_000 + n, attempt=2, **whom))
    # Recipients of one transaction are one transaction.
    records += [{**record, "position": 1, "index": 1, "recipient": "b" + record["recipient"]} for record in records]  # fmt: skip
    write_segment(tmp_path / "events", "a", records)
    path = tmp_path / "r.yaml"
    found = recommend(spark, Request(str(tmp_path / "events"), path), quiet)
    values = {provider: {line.key: line.value for line in lines} for provider, lines in found.items()}
    assert values == {
        "fast.example": {"rate": "100/m"},
        "narrow.example": {"connections_per_domain": 1},
        "grey.example": {"retry": {"delays": ["4m", "300s", "420s", "480s", "1500s", "4500s", "7200s", "14400s"]}},
    }  # fmt: skip
    text = path.read_text()
    assert "'Rate limit exceeded, <n>': 180 of 1,980 transactions (9.1 %)" in text
    assert "half of those with it 360 or more" in text
    assert parse_config(text, path).zones["narrow-example"].connections_per_domain == 1
