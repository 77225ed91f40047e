"""The operations that show the queue as a whole: depths of zones and destinations, the relay, rates. They change nothing."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator
from heapq import nlargest
from typing import Any

from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.reasons import Depths, Reasons, SuspendedMail
from zonemta_py.admin.requests import (
    RATE_KINDS,
    DestinationsRequest,
    RatesRequest,
    Row,
    ShapeRequest,
    StatusRequest,
    SummaryRequest,
)
from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import AGES_MIN, STATES
from zonemta_py.egress.paths import Constraint
from zonemta_py.queue.census import TOTAL, Census, count_all
from zonemta_py.queue.suspensions import part_of_key
from zonemta_py.queue.traffic import COUNTED, WINDOWS_MIN, TrafficRate
from zonemta_py.queue.upkeep.inspect import (
    recipient_rows,
)

SLICE_ROWS = 500
TOP_DESTINATIONS = 10
DESTINATIONS_OF_ZONE = 100  # that are looked at
NO_RATE = TrafficRate(dict.fromkeys(COUNTED, 0), 0.0, 0, 0)


# ---- depths of zones and destinations


class SummaryRow(Answer, frozen=True):
    """A zone with the number of its recipients in each state.

    ``counting``: mail of before the start is still being counted. ``sessions`` are open. ``oldest_ms``: when its oldest message was
    accepted, ``next_due_ms``: when the next deferred recipient is due (unix ms; null: there is none). ``destinations``: the largest,
    with the number of recipients. ``unreachable_destinations``: why mail to destinations that do not answer waits.
    """

    zone: str
    waiting: int
    in_flight: int
    unreachable: int
    suspended: int
    deferred: int
    not_before: int
    held: int
    counting: bool
    sessions: int
    oldest_ms: int | None
    next_due_ms: int | None
    destinations: dict[str, int]
    unreachable_destinations: dict[str, Constraint]


@operation("summary")
async def summary(on: Operations, request: SummaryRequest) -> AsyncIterator[SummaryRow]:
    """Yield a row for each zone."""
    queue, census = on.queue, await census_of(on)
    depths, next_due_ms = _depths(on, census), queue.deferral.next_due_ms()
    reasons = Reasons(queue, on.relay)
    for zone in census.zones():
        failing = queue.windows.zone(zone).unreachable()[:TOP_DESTINATIONS]
        unreachable = {
            name: why for name in failing if (why := reasons.destination(zone, name)) is not None
        }
        yield SummaryRow(
            zone=zone,
            **depths.zone(zone),
            counting=not census.is_complete,
            sessions=on.relay.zones[zone].sessions if zone in on.relay.zones else 0,
            oldest_ms=depths.oldest_ms(zone),
            next_due_ms=next_due_ms.get(zone),
            destinations={name: row[TOTAL] for name, row in census.largest(zone, TOP_DESTINATIONS)},
            unreachable_destinations=unreachable,
        )


async def census_of(on: Operations) -> Census:
    """The census of the running relay; else the queue is counted."""
    census = on.queue.census
    if not census.is_complete and not on.queue.counting:
        for counted in count_all(on.queue.store, on.queue.windows.destination_of):
            await asyncio.sleep(0)
            census = counted or census
    return census


def suspended_mail(on: Operations) -> SuspendedMail:
    """The mail that operators have suspended, for one request."""
    return SuspendedMail(on.queue.suspended, on.relay.zones)


def _depths(on: Operations, census: Census) -> Depths:
    return Depths(census, on.queue.windows, suspended_mail(on))


class ShapeRow(Answer, frozen=True):
    """A destination with its recipients by age: up to 5, 10, 20, 40, … minutes, and older."""

    zone: str
    destination: str
    total: int
    ages: list[int]


@operation("shape")
async def shape(on: Operations, request: ShapeRequest) -> AsyncIterator[ShapeRow]:
    """Yield a row for each destination, the largest first."""
    queue, now_ms = on.queue, on.queue.now()
    shape: dict[tuple[str, str], list[int]] = {}
    for number, row in enumerate(recipient_rows(queue.store, request.zone)):
        if number % SLICE_ROWS == 0:
            await asyncio.sleep(0)
        if request.state in (None, row["state"]):
            place = row["zone"], queue.windows.destination_of(row["zone"], row["domain"])
            found = shape.setdefault(place, [0] * (len(AGES_MIN) + 1))
            found[bisect_left(AGES_MIN, (now_ms - row["created_ms"]) / 60_000)] += 1
    largest = nlargest(request.limit, shape.items(), key=lambda item: sum(item[1]))
    for (zone, destination), ages in largest:
        yield ShapeRow(zone, destination, sum(ages), ages)


# ---- the relay


class UnreachableDestination(Answer, frozen=True):
    """A destination that does not answer, and why."""

    zone: str
    destination: str
    why: Constraint | None


class StatusRow(Answer, frozen=True):
    """A running relay.

    ``processes``: the process ids by role. ``not_ready``: why it should get no mail; empty: it is ready. ``taken_over``: queues of
    other relays whose mail it sends. ``queue``: recipients by state, ``per_s``: what was attempted in a second, by outcome, in the
    last 5 minutes. ``unreachable``: the number of destinations that do not answer, ``unreachable_destinations`` the first of them. The last three are
    what an operator has suspended: tenants and users, what sends, parts of the mail.
    """

    version: str
    hostname: str
    since_ms: int
    zones: list[str]
    config: str
    listeners: list[str]
    http: list[str]
    processes: dict[str, list[int]]
    not_ready: list[str]
    warnings: list[str]
    sessions_in: int
    sessions_out: int
    taken_over: list[str]
    counting: bool
    queue: dict[str, int]
    per_s: dict[str, float]
    unreachable: int
    unreachable_destinations: list[UnreachableDestination]
    suspended_submitters: list[str]
    suspended_sending: list[str]
    suspended_mail: list[str]


@operation("status", rows=(StatusRow,))
async def status(on: Operations, request: StatusRequest) -> AsyncIterator[Row]:
    """Yield one row. Raises LocalError when no relay is running."""
    if on.relay.status is None:
        raise LocalError("no relay is running")
    queue, reasons = on.queue, Reasons(on.queue, on.relay)
    depths = _depths(on, queue.census)
    zones = {zone: depths.zone(zone) for zone in queue.census.zones()}
    failing = [(zone, name) for zone in zones for name in queue.windows.zone(zone).unreachable()]
    why = {place: reasons.destination(*place) for place in failing[:TOP_DESTINATIONS]}
    traffic = queue.traffic
    rates = traffic.rates(traffic.zones, 5).values()
    covered_s = max([1.0, *(rate.covered_s for rate in rates)])
    yield {
        **on.relay.status(),
        "counting": not queue.census.is_complete,
        "queue": {state: sum(zone[state] for zone in zones.values()) for state in STATES},
        "per_s": {
            name: round(sum(rate.counts[name] for rate in rates) / covered_s, 2) for name in COUNTED
        },
        "unreachable": len(failing),
        "unreachable_destinations": [
            {"zone": zone, "destination": name, "why": to_plain(found)}
            for (zone, name), found in why.items()
        ],
        "suspended_submitters": queue.suspended.submitters(),
        "suspended_sending": queue.suspended.sending(),
        "suspended_mail": [str(part_of_key(name)) for name in queue.suspended.parts()],
    }


class RatesRow(Answer, frozen=True):
    """Attempts of a zone, destination, source address or tenant (``kind``) in the last minutes, by outcome, and in a second.

    ``sessions`` that were opened; ``covered_s``: of how many seconds this is; half, or 95 %, of the attempts took at most ``p50_ms``,
    or ``p95_ms``.
    """

    kind: str
    name: str
    attempts: int
    delivered: int
    deferred: int
    bounced: int
    expired: int
    lapsed: int
    sessions: int
    attempts_per_s: float
    delivered_per_s: float
    deferred_per_s: float
    bounced_per_s: float
    expired_per_s: float
    lapsed_per_s: float
    sessions_per_s: float
    covered_s: float
    p50_ms: int
    p95_ms: int


@operation("rates")
async def rates(on: Operations, request: RatesRequest) -> AsyncIterator[RatesRow]:
    """Yield a row for each zone, destination, source address and tenant with traffic, the busiest first. Raises LocalError."""
    if request.minutes not in WINDOWS_MIN:
        raise LocalError(f"minutes: expected one of {', '.join(map(str, WINDOWS_MIN))}")
    traffic = on.queue.traffic
    tables = traffic.zones, traffic.destinations, traffic.sources, traffic.tenants
    for kind, counts in zip(RATE_KINDS, tables, strict=True):
        if request.kind not in (None, kind):
            continue
        found = traffic.rates(counts, request.minutes)
        busiest = nlargest(request.limit, found.items(), key=lambda item: item[1].counts["attempts"])
        for name, rate in busiest:
            seconds = max(1.0, rate.covered_s)
            per_s: dict[str, Any] = {
                f"{each}_per_s": round(count / seconds, 3) for each, count in rate.counts.items()
            }
            yield RatesRow(
                kind=kind,
                name=name,
                **rate.counts,
                **per_s,
                covered_s=round(rate.covered_s, 1),
                p50_ms=rate.p50_ms,
                p95_ms=rate.p95_ms,
            )


class Recent(Answer, frozen=True):
    """Attempts by outcome, sessions that were opened, and how long 95 % of the attempts took at most."""

    attempts: int
    delivered: int
    deferred: int
    bounced: int
    expired: int
    lapsed: int
    sessions: int
    p95_ms: int


class DestinationRow(Answer, frozen=True):
    """A destination with the number of its recipients in each state; ``zone`` is empty where nothing is queued any more.

    ``provider``: to which its mail goes. ``why`` it waits, or null. ``recent``: what was attempted in 5 minutes, in all zones.
    ``reply``: the last one that was no success.
    """

    zone: str
    destination: str
    provider: str
    waiting: int
    in_flight: int
    unreachable: int
    suspended: int
    deferred: int
    not_before: int
    held: int
    total: int
    why: Constraint | None
    recent: Recent
    reply: str


@operation("destinations")
async def destinations(on: Operations, request: DestinationsRequest) -> AsyncIterator[DestinationRow]:
    """Yield a row for each, the largest first. Rates are by destination only: of one without mail the zone is not known."""
    queue, census = on.queue, await census_of(on)
    reasons, depths, traffic = Reasons(queue, on.relay), _depths(on, census), queue.traffic
    rates = traffic.rates(traffic.destinations, 5)
    found: dict[tuple[str, str], dict[str, int]] = {}
    for zone in census.zones():
        if request.zone in (None, zone):
            named = {name for name, rate in rates.items() if _failures(rate)}
            named.update(queue.windows.zone(zone).unreachable())
            most = min(request.limit, DESTINATIONS_OF_ZONE)
            for name, states in depths.destinations(zone, most, named).items():
                found[zone, name] = states
    if request.zone is None:
        queued = {name for _, name in found}
        failed = (name for name, rate in rates.items() if _failures(rate) and name not in queued)
        found.update({("", name): dict.fromkeys(STATES, 0) for name in failed})
    sent = 0
    for (zone, name), states in sorted(found.items(), key=lambda item: -sum(item[1].values())):
        why, rate = reasons.destination(zone, name), rates.get(name, NO_RATE)
        if request.troubled and why is None and not _failures(rate):
            continue
        yield DestinationRow(
            zone=zone,
            destination=name,
            provider=on.relay.zones[zone].provider(name) if zone in on.relay.zones else "",
            **states,
            total=sum(states.values()),
            why=why,
            recent=Recent(**rate.counts, p95_ms=rate.p95_ms),
            reply=traffic.failures.get(name, "") if _failures(rate) else "",
        )
        sent += 1
        if sent >= request.limit:
            return


def _failures(rate: TrafficRate) -> int:
    return rate.counts["deferred"] + rate.counts["bounced"]
