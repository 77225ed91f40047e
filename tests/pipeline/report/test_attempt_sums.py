"""Sums of attempts by Arrow."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.segments import delivered
from zonemta_py.pipeline.events.replies import KIND_MAX, masked

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
attempts_module = pytest.importorskip("zonemta_py.pipeline.report.attempts")
sums = pytest.importorskip("zonemta_py.pipeline.report.attempts")


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_buckets_of_ages(ages: list[int]) -> None:
    """In order, exact when small, at most a 128th wide."""
    values = np.array(sorted(ages), dtype=np.int64)
    buckets = sums.age_bucket(values)
    assert (np.diff(buckets) >= 0).all()
    middle = sums.bucket_age_ms(buckets)
    assert (np.abs(middle - values) <= values / 256 + 0.5).all()
    assert (middle[values < 256] == values[values < 256]).all()


def lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in events)


EVENTS = [
    delivered(1, domain="gmail.com", created_ms=1_800_000_000_000 - 999, tags=["sale", "shoes"], campaign="june"),
    delivered(2, domain="x.example", source_ip="127.0.0.3"),
    delivered(3, event="deferred", code=451, status="4.7.1", reply="Try again in 42 s", domain="gmail.com"),
    delivered(4, event="deferred", code=451, status="4.7.1", reply="Try again in 43 s", domain="gmail.com"),
    delivered(5, event="bounced", code=550, status="5.1.1", reply="<a@x.example> unknown", tags=["sale"]),
    delivered(6, event="expired", code=0, status="4.4.1", reply="timeout", created_ms=None),
    {"node": "a", "seq": 7, "position": 0, "event": "accepted", "time_ms": 1, "message": "m", "recipients": [{"recipient": "x"}]},
]  # fmt: skip


def table(parts: list[bytes]) -> Any:
    tasks = attempts_module.TaskSums()
    for attempts in attempts_module.decode_attempts(parts):
        tasks.add(attempts)
    return pa.concat_tables([sums.SUMS.empty_table(), *tasks.tables(7)])


def rows(part: str, found: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in found.to_pylist() if row["part"] == part]  # fmt: skip


def test_sums() -> None:
    found = table([lines(EVENTS[:3]), lines(EVENTS[3:])])
    rates = {(row["dimension"], row["value"]): row for row in rows("rates", found)}
    assert {name: rates["all", ""][name] for name in sums.ATTEMPTS} == {
        "delivered": 2, "deferred": 2, "bounced": 1, "expired": 1,
    }  # fmt: skip
    assert rates["provider", "google"]["deferred"] == rates["domain", "gmail.com"]["deferred"] == 2
    assert rates["address", "127.0.0.3"]["delivered"] == 1
    assert (rates["tag", "sale"]["delivered"], rates["tag", "sale"]["bounced"]) == (1, 1)
    assert rates["campaign", "june"]["ages"] == [sums.age_bucket(np.array([1000]))[0]]
    assert sum(row["delivered"] for row in rows("hours", found)) == 2
    assert {(row["address"], row["provider"], row["delivered"]) for row in rows("days", found)} >= {
        ("127.0.0.2", "google", 1), ("127.0.0.3", "x.example", 1),
    }  # fmt: skip
    replies = {
        (row["event"], row["kind"]): (row["count"], row["example"]) for row in rows("replies", found)
    }
    assert replies == {
        ("deferred", "Try again in <n> s"): (2, "Try again in 42 s"),
        ("bounced", "<address> unknown"): (1, "<a@x.example> unknown"),
        ("expired", "timeout"): (1, "timeout"),
    }


def test_the_provider_that_an_event_names() -> None:
    """The relay knows it by the hosts; an event of an earlier version, or without a look-up, has none."""
    events = [
        delivered(1, domain="company.example", provider="google"),
        delivered(2, domain="company.example", provider="google"),
        delivered(3, domain="company.example", provider="mx.company.example"),  # before it moved
        delivered(4, domain="company.example"),
        delivered(5, domain="gmail.com", provider=""),
    ]
    found = table([lines(events)])
    rates = {(row["dimension"], row["value"]): row["delivered"] for row in rows("rates", found)}
    assert {value: count for (name, value), count in rates.items() if name == "provider"} == {
        "google": 3, "mx.company.example": 1, "company.example": 1,
    }  # fmt: skip
    named = sums.providers_of(sums.part_of(found, "domains")).to_pylist()
    assert {row["domain"]: row["provider"] for row in named} == {
        "company.example": "google", "gmail.com": "google",
    }  # fmt: skip


def test_a_field_of_another_type() -> None:
    """An event of a newer relay, whose field has another type: the others count."""
    odd = {
        "node": "a",
        "seq": 9,
        "position": 0,
        "event": "novel",
        "time_ms": 1,
        "code": {"a": 1},
        "tags": "x",
    }
    assert table([lines([*EVENTS, odd])]).equals(table([lines(EVENTS)]))


@given(st.lists(st.sampled_from(EVENTS), max_size=40), st.integers(1, 4))
def test_sums_can_be_added(events: list[dict[str, Any]], parts: int) -> None:
    """The sums of parts, added, are those of the whole."""
    if not events:
        assert table([]).num_rows == 0
        return
    whole = table([lines(events)])
    each = [table([lines(events[n::parts])]) for n in range(parts) if events[n::parts]]
    added = sums.add_sums(pa.concat_tables(each))
    assert counted(added) == counted(whole)


def counted(found: Any) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True) for row in found.to_pylist())


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_quantiles(ages: list[int]) -> None:
    """The age that a share of the recipients has at most, exact but for the width of a bucket."""
    now = 1_800_000_000_000
    found = table(
        [lines([delivered(n, time_ms=now, created_ms=now - age) for n, age in enumerate(ages)])]
    )
    rates = found.filter(pc.equal(found.column("part"), "rates"))
    at = [row["dimension"] for row in rates.to_pylist()].index("all")
    ordered = sorted(ages)
    for share, column in zip((0.5, 0.95, 1.0), sums.quantiles_ms(rates, (0.5, 0.95, 1.0)), strict=True):
        exact = ordered[max(0, int(np.ceil(share * len(ages))) - 1)]
        assert column[at].as_py() == pytest.approx(exact, rel=1 / 128, abs=0.5)


@given(st.lists(st.text("ab1290 <>@.-é", max_size=24), max_size=6))
def test_kinds_of_replies(replies: list[str]) -> None:
    """Digits are made equal before replies are masked, which makes no difference."""
    found = attempts_module.reply_kinds(pa.array(replies, pa.string())).to_pylist()
    assert found == [masked(each)[:KIND_MAX] for each in replies]
