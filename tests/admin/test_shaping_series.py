"""The metrics of sending: their values, and that neither providers nor addresses decide how many series there are."""

from collections import Counter

from tests.admin.page.test_provider_matrix import LOWERED, WARMING, path
from zonemta_py.admin.metrics import (
    PATHS_MAX,
    RATES_MAX,
    SHAPING_CLASSES_MAX,
    WARMUPS_MAX,
    shaping_series,
)
from zonemta_py.admin.requests import Row

Found = dict[str, dict[tuple[str, ...], float]]


def series(rows: list[Row], warmups: list[Row] | None = None) -> Found:
    """By name and labels."""
    return {each.name: dict(each.values) for each in shaping_series(rows, warmups or [])}


def test_values_of_a_way() -> None:
    rates = [{"rate": "60/m", "used": 12, "of": 60}]
    row = path(
        rates=rates, connect_rates=[{"rate": "5/m", "used": 5, "of": 5}], sessions=1, sessions_max=2, refused=3,
        waiting=7, last_classes=["blocked", "rate_limited", "blocked"], **LOWERED,
    )  # fmt: skip
    found, key = series([row, path("other")]), ("big", "192.0.2.1")
    assert found["zonemta_provider_sessions"] == {key: 1, ("other", "192.0.2.1"): 0}
    assert found["zonemta_provider_sessions_max"] == {key: 2}
    assert found["zonemta_provider_rate_used_ratio"] == {(*key, "60/m"): 0.2, (*key, "connect 5/m"): 1}
    assert found["zonemta_provider_paused"] == {key: 0, ("other", "192.0.2.1"): 0}
    assert found["zonemta_provider_pace_ratio"] == {key: 0.5}
    assert found["zonemta_provider_refused_recent"][key] == 3
    assert found["zonemta_provider_last_refusals"] == {(*key, "blocked"): 2, (*key, "rate_limited"): 1}
    assert found["zonemta_provider_waiting"] == {("big",): 7, ("other",): 0}


def test_what_sends_nothing_is_paused() -> None:
    """Because of replies, or because an operator has suspended it."""
    rows = [path("a", paused_until_ms=9, **LOWERED), path("b", suspended="provider b"), path("c")]
    assert list(series(rows)["zonemta_provider_paused"].values()) == [1, 1, 0]


def test_values_of_warm_ups() -> None:
    over = {**WARMING, "address": "192.0.2.2", "allowed": None, "sent": 5, "late_days": 2}
    found = series([], [over, {**WARMING, "late_days": 1, "provider": "big"}])
    assert found["zonemta_warmup_sent"] == {("192.0.2.1", "big"): 412, ("192.0.2.2", ""): 5}
    assert found["zonemta_warmup_allowed"] == {("192.0.2.1", "big"): 500}
    assert found["zonemta_warmup_late_days"] == {("192.0.2.1", "big"): 1}


def test_series_are_limited() -> None:
    """A path that is paused, which has no attempts, has its series before any other."""
    rates = [{"rate": f"{n}/s", "used": 1, "of": 9} for n in range(4)]
    classes = ["blocked", "policy", "other", "greylisted", "virus"]
    rows = [
        path(f"p{n // 8}", f"192.0.2.{n % 8}", rates=rates, last_classes=classes, attempts=n)
        for n in range(2400)
    ]
    rows.append(path("stopped", paused_until_ms=1, **LOWERED))
    warmups = [{**WARMING, "address": f"192.0.2.{n}"} for n in range(800)]
    found = series(rows, warmups)
    assert found["zonemta_provider_paused"]["stopped", "192.0.2.1"] == 1
    assert len(found["zonemta_provider_paused"]) == PATHS_MAX
    assert ("p299", "192.0.2.7") in found["zonemta_provider_sessions"]  # with most attempts
    assert len(found["zonemta_provider_rate_used_ratio"]) == RATES_MAX
    assert len(found["zonemta_provider_last_refusals"]) == SHAPING_CLASSES_MAX
    assert len(found["zonemta_warmup_sent"]) == WARMUPS_MAX
    assert sum(Counter({name: len(each) for name, each in found.items()}).values()) < 6000
