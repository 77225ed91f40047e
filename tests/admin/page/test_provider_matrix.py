"""The matrix of providers and addresses: its order, its columns, what is not shown, and what its cells say."""

from typing import Any

import pytest

from zonemta_py.admin.egress import attention
from zonemta_py.admin.page.responses import make_environment
from zonemta_py.admin.page.views import cell, matrix, state_of
from zonemta_py.admin.requests import Row

HOSTILE = "<b onclick=x>\"'&{{ 1 }}.example"
WARMING: Row = {
    "address": "192.0.2.1", "provider": "", "begins": "2026-12-01", "step": 3, "steps": 12, "allowed": 500,
    "sent": 412, "left": 88, "late_days": 0, "paused": False,
}  # fmt: skip
LOWERED: Row = {
    "pace_sessions": 2, "pace_per_min": 30, "full_per_min": 60, "full_sessions": 4, "cause": "20 of 50",
    "pace_rates": [{"rate": "30/m", "used": 9, "of": 30}],
}  # fmt: skip


def path(provider: str = "big", address: str = "192.0.2.1", **changes: Any) -> Row:
    """A row as ``Egress.rows`` has it, on which nothing is unusual."""
    return {
        "provider": provider, "address": address, "sessions": 0, "idle": 0, "sessions_max": None, "rates": [],
        "connect_rates": [], "pace_sessions": None, "pace_rates": [], "paused_until_ms": 0, "cause": "",
        "pace_per_min": None, "full_per_min": None, "full_sessions": None, "provider_sessions": 0,
        "provider_sessions_max": None, "attempts": 0, "refused": 0, "last_classes": [], "suspended": "",
        "waiting": 0, "warmup": [], **changes,
    }  # fmt: skip


def rendered(*paths: Row, provider: str = "") -> str:
    """The page, with spaces instead of line breaks."""
    session = {"csrf": "x", "token": {"tenant": "", "role": "read"}}
    text = (
        make_environment("relay.example")
        .get_template("providers.html")
        .render(layout="main.html", session=session, provider=provider, **matrix(paths))
    )
    return " ".join(text.split())


def test_what_needs_attention_comes_first() -> None:
    paths = [
        path("h-busy", attempts=1000), path("i-idle"), path("g-waits", waiting=3),
        path("f-refused", attempts=100, refused=1), path("e-late", warmup=[{**WARMING, "late_days": 1}]),
        path("d-lowered", **LOWERED), path("c-lowered-refused", refused=70, attempts=99, **LOWERED),
        path("b-paused", paused_until_ms=1, **LOWERED), path("a-suspended", suspended="address x"),
    ]  # fmt: skip
    found = [row["provider"][0] for row in sorted(paths, key=attention)]
    assert found == list("abcdefghi")


def test_a_list_that_is_watched_does_not_jump() -> None:
    """Attempts of the same number of digits are in the order of names."""
    paths = [path("b", attempts=500), path("a", attempts=400), path("c", attempts=2000)]
    assert [row["provider"] for row in sorted(paths, key=attention)] == ["c", "a", "b"]


def test_columns_of_few_addresses_and_cells_of_many() -> None:
    """Addresses are in the order of their numbers, the one of the system first."""
    few = matrix([path(address=each) for each in ("2001:db8::1", "192.0.2.10", "system", "192.0.2.9")])
    assert few["addresses"] == ["system", "192.0.2.9", "192.0.2.10", "2001:db8::1"]
    many = matrix([path(address=f"192.0.2.{n}") for n in range(8)])
    assert many["addresses"] == []
    assert len(many["providers"][0]["cells"]) == 8


def test_a_limit_of_ways_and_what_is_not_shown() -> None:
    paths = [path(f"p{n // 4:03}", f"192.0.2.{n % 4}") for n in range(402)]
    found = matrix(paths)
    assert sum(len(row["cells"]) for row in found["providers"]) == 100
    assert found["others"] == 302
    assert sum(found["counts"].values()) == 402
    cut = matrix(paths, 6)
    assert [row["others"] for row in cut["providers"]] == [0, 2]
    assert "302 others are not shown" in rendered(*paths)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "full"), (LOWERED, "lowered"), ({**LOWERED, "paused_until_ms": 5}, "paused"),
        ({**LOWERED, "paused_until_ms": 5, "suspended": "provider big"}, "suspended"),
    ],
)  # fmt: skip
def test_states(changes: dict[str, Any], state: str) -> None:
    assert state_of(path(**changes)) == state
    assert f"is-{state}" in rendered(path(**changes))


def test_a_cell_has_uses_and_replies() -> None:
    row = path(
        rates=[{"rate": "60/m", "used": 12, "of": 60}], last_classes=["blocked", "rate_limited", "rate_limited"],
        connect_rates=[{"rate": "5/m", "used": 2, "of": 5}], sessions=1, sessions_max=2, refused=3, attempts=40,
        waiting=7, provider_sessions=1, provider_sessions_max=9, **LOWERED,
    )  # fmt: skip
    assert cell(row)["replies"] == [("rate_limited", 2), ("blocked", 1)]
    text = rendered(row)
    for expected in (
        "12 of 60/m", "2 of 5/m, new sessions", "9 of 30/m, lowered", "1 of 2 sessions", "3 of 40 refused",
        "to 30 of 60/m, 2 of 4 sessions", 'title="20 of 50"', "<code>rate_limited</code>", "7 destinations wait",
        "1 of 9 sessions of all addresses",
    ):  # fmt: skip
        assert expected in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Warm-up of all mail: step 3 of 12, 412 of 500 today"),
        ({"provider": "big", "late_days": 2, "paused": True}, "2 days late"),
        ({"paused": True}, '<b class="tag slow">paused</b>'),
        ({"step": 0, "allowed": 0}, "begins on 2026-12-01"),
        ({"step": 13, "allowed": None, "late_days": 3}, "Warm-up of all mail: over</p>"),
    ],
)
def test_the_progress_of_a_warm_up(changes: dict[str, Any], expected: str) -> None:
    assert expected in rendered(path(warmup=[{**WARMING, **changes}]))


def test_what_strangers_name_is_text() -> None:
    """Names of hosts, causes and classes."""
    row = path(
        HOSTILE, **{**LOWERED, "cause": HOSTILE}, suspended=HOSTILE, last_classes=[HOSTILE],
        rates=[{"rate": HOSTILE, "used": 1, "of": 2}],
    )  # fmt: skip
    for text in (rendered(row), rendered(row, provider=HOSTILE)):
        assert "<b onclick" not in text
        assert '">"' not in text
        assert "&lt;b onclick=x&gt;&#34;&#39;&amp;{{ 1 }}.example" in text


def test_nothing_to_show() -> None:
    assert "Nothing is limited" in rendered()
