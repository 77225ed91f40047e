"""Recommendations, and the YAML that the relay accepts."""

from pathlib import Path
from typing import Any

import pytest

from zonemta_py.config.load import parse_config
from zonemta_py.config.zones import Zone
from zonemta_py.pipeline.report.advice import ProviderStats, advise, as_yaml


def stats(**changes: Any) -> ProviderStats:
    values: dict[str, Any] = {
        "provider": "big.example", "domains": ["big.example"], "zones": ["default"], "transactions": 10_000, "limited": 0,
        "limited_sessions": 0, "limit_reply": "", "clean_per_minute": 480.0, "limited_per_minute": 900.0, "clean_sessions": 7.6,
        "busiest_sessions": 8.0, "greylisted": 0, "greylist_s": None, "greylist_through": 0, **changes,
    }  # fmt: skip
    return ProviderStats(**values)


def keys(provider: ProviderStats, zone: Zone | None = None) -> dict[str, object]:
    return {line.key: line.value for line in advise(provider, zone)}


def test_no_recommendation_without_evidence() -> None:
    assert keys(stats()) == {}
    assert keys(stats(limited=19)) == {}, "too few replies"
    assert keys(stats(limited=40)) == {}, "too small a share"
    assert keys(stats(limited=100, clean_per_minute=None)) == {}, "no clean minute"
    assert keys(stats(greylisted=100, greylist_s=50.0, greylist_through=5)) == {}


def test_limits() -> None:
    assert keys(stats(limited=100, limit_reply="slow down")) == {"rate": "480/m"}
    assert keys(stats(limited=100, limited_sessions=90)) == {"connections_per_domain": 7}
    assert keys(stats(limited=100, limited_sessions=90, clean_sessions=0.2)) == {
        "connections_per_domain": 1
    }


def test_first_delay() -> None:
    found = keys(stats(greylisted=900, greylist_s=400.0, greylist_through=800))
    assert found == {"retry": {"delays": ["7m", "480s", "1500s", "4500s", "7200s", "14400s"]}}


def test_more_connections() -> None:
    zone = Zone(connections_per_domain=8)
    assert keys(stats(), zone) == {"connections_per_domain": 16}
    assert keys(stats(limited=1), zone) == {}, "a reply mentioned a limit"
    assert keys(stats(busiest_sessions=6.0), zone) == {}, "not all were in use"


@pytest.mark.parametrize(
    "said", ["slow\r\n# down", "ünï" * 100, '"quoted": {yes}', "\0\u2028\x85\x1b[1m"]
)
def test_the_relay_accepts_the_yaml(said: str) -> None:
    """Text of a peer does not leave its comment."""
    found = stats(limited=100, limit_reply=said, greylisted=99, greylist_s=90.0, greylist_through=90, domains=["b.example", "xn--c.example"])  # fmt: skip
    text = as_yaml([(found, advise(found, None))], "made by a test")
    config = parse_config(text, Path("r.yaml"))
    assert set(config.zones) == {"default", "big-example"}
    zone = config.zones["big-example"]
    assert zone.rate is not None
    assert (zone.rate.events, zone.rate.per_s, zone.retry.delays[0]) == (480, 60.0, 120.0)
    assert [(r.recipient_domain, r.zone) for r in config.routing] == [("b.example", "big-example"), ("xn--c.example", "big-example")]  # fmt: skip
    assert "100 of 10,000 transactions (1.0 %)" in text
    assert parse_config(as_yaml([], "none"), Path("r.yaml")).zones.keys() == {"default"}
