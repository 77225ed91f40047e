"""Rates of the last 1, 5 and 60 minutes, on a clock that the test sets; the census of attempts since the start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue import traffic as traffic_module
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import new_recipient_record
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.traffic import OTHER, WINDOWS_MIN, RecentCounts, Traffic, percentile


class Now:
    """Monotonic seconds that the test sets."""

    s = 1000.0

    def __call__(self) -> float:
        return self.s


def outcome(kind: OutcomeKind, code: int, duration_ms: int, source: str = "192.0.2.1") -> Outcome:
    address, message = "a@x.example", "0" * 24
    key = keys.waiting_key("bulk", message, address)
    recipient = QueuedRecipient(key, "bulk", message, address, new_recipient_record(0, "x.example", ""))
    attempt = Attempt("dot", code, "", "", source_ip=source, duration_ms=duration_ms)
    return Outcome(recipient, kind, attempt)


def test_what_happened_is_in_every_table_and_window() -> None:
    now = Now()
    traffic = Traffic(now)
    done = [outcome(OutcomeKind.DELIVERED, 250, 40), outcome(OutcomeKind.BOUNCED, 550, 40)]
    traffic.opened("bulk", "x.example", done[0].attempt, 2)
    traffic.settled("bulk", "x.example", "acme", done, 3.0)
    traffic.settled("bulk", "x.example", "", [outcome(OutcomeKind.DEFERRED, 0, 30_000, "")], 3.0)
    for minutes in WINDOWS_MIN:
        [(name, rate)] = traffic.rates(traffic.zones, minutes).items()
        assert name == "bulk"
        assert rate.counts == {
            "attempts": 3, "delivered": 1, "deferred": 1, "bounced": 1, "expired": 0, "lapsed": 0,
            "sessions": 2,
        }  # fmt: skip
        assert (rate.p50_ms, rate.p95_ms) == (50, 30_000)
    from_address = traffic.rates(traffic.sources, 1)["192.0.2.1"].counts
    assert (from_address["attempts"], from_address["sessions"]) == (2, 2)
    assert traffic.rates(traffic.tenants, 1)["acme"].counts["bounced"] == 1
    assert traffic.outcomes == (
        {("bulk", "delivered", 2): 1, ("bulk", "bounced", 5): 1, ("bulk", "deferred", 0): 1}
    )
    assert traffic.sessions["bulk"] == 2
    assert (sum(traffic.attempt_s["bulk"].counts), traffic.attempt_s["bulk"].total) == (2, 30.04)
    assert traffic.delivery_s["bulk"].cumulative()[3:5] == [("2.0", 0), ("5.0", 1)]
    traffic.accept(2000, ["bulk", "bulk", "default"])
    assert (traffic.messages, traffic.accepted["bulk"], traffic.sizes.total) == (1, 2, 2000)


@given(st.lists(st.floats(0, 4000), max_size=30), st.floats(0, 4000))
def test_a_window_has_what_its_time_has(steps_s: list[float], after_s: float) -> None:
    """All that is younger than the window, and nothing that is older by more than a step."""
    now_s, counts, times = 0.0, RecentCounts(0.0), []
    for step_s in steps_s:
        now_s += step_s
        times.append(now_s)
        counts.row("a", now_s)[0] += 1
    now_s += after_s
    for minutes, step_s in zip(WINDOWS_MIN, (10, 60, 300), strict=True):
        rows, covered_s = counts.window(minutes, now_s)
        found = rows.get("a", [0])[0]
        least = sum(now_s - each < minutes * 60 for each in times)
        most = sum(now_s - each <= minutes * 60 + 2 * step_s for each in times)
        assert least <= found <= most
        assert covered_s <= minutes * 60 + 2 * step_s


def test_names_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "NAMES_MAX", 3)
    counts = RecentCounts(0.0)
    for second in range(120):
        counts.row(f"d{second % 10}", float(second))[0] += 1
    rows, _ = counts.window(5, 120.0)
    assert sum(row[0] for row in rows.values()) == 120
    assert len(rows) == 4
    assert rows[OTHER][0] > 0


def test_percentiles() -> None:
    assert percentile([0] * traffic_module.ROW_LENGTH, 0.5) == 0
    row = [0] * traffic_module.ROW_LENGTH
    row[traffic_module.TIMES] = 95
    row[-1] = 5
    assert (percentile(row, 0.5), percentile(row, 0.95), percentile(row, 0.99)) == (5, 5, 300_000)


def test_after_a_long_pause() -> None:
    """A window covers what it says, also when nothing happened for a day."""
    now = Now()
    traffic = Traffic(now)
    traffic.opened("bulk", "x.example", None, 1)
    now.s += 86_400
    traffic.opened("bulk", "x.example", None, 1)
    for minutes in WINDOWS_MIN:
        rate = traffic.rates(traffic.zones, minutes)["bulk"]
        assert rate.counts["sessions"] == 1
        assert rate.covered_s <= 60 * minutes + 600
