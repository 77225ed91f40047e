"""Addresses from which a destination may open no session."""

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.values import Rate
from zonemta_py.core.model import PoolKey
from zonemta_py.egress.admission import Destination, WorkerSlot
from zonemta_py.egress.limits import EgressLimits, Permit, Permits
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.zone import PRUNE_MIN, ClosedAddresses
from zonemta_py.schedule.scheduler import KNOWN

A, B = PoolAddress("192.0.2.1"), PoolAddress("192.0.2.2")
HOUR_MS = 3_600_000


def refused(name: str) -> WorkerSlot:
    """A worker whose permit allows no new session from A for an hour."""
    permits = Permits(lambda provider, address: None)
    permits.configure(lambda provider: ProviderLimits(connect_rate=(Rate(1, 3600.0),)), {})
    first = permits.take("big", A.address or "", 0)
    assert isinstance(first, Permit)
    permits.begin(first, 0, 1)
    return WorkerSlot(Destination(name, 1), KNOWN, first)


def test_an_address_is_closed_until_the_rate_allows_a_session() -> None:
    closed = ClosedAddresses()
    closed.close(refused("d.example"), 0)
    assert closed.open_of("d.example", [A, B], 1) == [B]
    assert closed.open_of("d.example", [A, B], 1, held=A.address or "") == [A, B]
    assert closed.open_of("other.example", [A, B], 1) == [A, B]
    allowance = EgressLimits(lambda provider, address: None)
    found = closed.take(allowance, "d.example", "big", PoolKey("p", A.address or ""), [A, B], 1)
    assert isinstance(found, Refusal)
    assert found.is_alone
    until_ms = found.until_ms
    permit = closed.take(allowance, "d.example", "big", PoolKey("p"), [A, B], 1)
    assert isinstance(permit, Permit)
    assert permit.address == B.address
    assert HOUR_MS <= until_ms < 2 * HOUR_MS
    assert closed.open_of("d.example", [A, B], until_ms - 1) == [B]
    assert closed.open_of("d.example", [A, B], until_ms) == [A, B]


def test_a_session_that_a_worker_leaves_opens_it_again() -> None:
    """That of the worker that was refused is another one, which is closed."""
    closed, slot = ClosedAddresses(), refused("d.example")
    closed.close(slot, 0)
    assert not closed.ended(slot, had_session=True)
    assert not closed.ended(refused("d.example"), had_session=False)
    assert closed.open_of("d.example", [A], 1) == []
    assert closed.ended(refused("d.example"), had_session=True)
    assert closed.open_of("d.example", [A], 1) == [A]


def test_what_is_over_is_dropped() -> None:
    closed = ClosedAddresses()
    for number in range(3 * PRUNE_MIN):
        slot = refused(f"d{number}.example")
        closed.close(slot, number * HOUR_MS)
        closed.ended(slot, had_session=False)
    assert len(closed._until_ms) <= PRUNE_MIN + 1
