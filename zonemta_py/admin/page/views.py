"""Contexts of the page's templates, made of the operations that the commands and the API have too.

States of ``Charts``: made ─ start ─▶ a sample each EVERY_S ─ stop ─▶ ended. ``Views`` remembers destinations for DESTINATIONS_EVERY_S, and
nothing else.

Invariants:

- The page shows nothing that an operation does not answer, but for the charts. ``tenant`` is that of the token, empty for operators:
  ``restrict`` limits a request to its mail, or raises PermissionError.
- Lists that mail could make long have a limit (``…_MAX``).
- All columns of ``Charts`` have the length of ``_times_ms``, at most KEPT. There are series of at most ZONES_MAX zones, and of ALL.
- Charts are in memory only: they begin with the start of the relay.

Callers: ``page.page`` has a ``Views`` and calls a method for each template; ``relay.admin_service`` makes, starts and stops the ``Charts``.

Example: ``await Views(operations).zone("bulk")`` returns ``{"zone": "bulk", "summary": …, "rate": …, "destinations": […]}`` for the template
``zone.html``, or raises NotFound.
"""

import asyncio
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from typing import Any

from zonemta_py.admin.egress import is_lowered
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import restrict, run_operation
from zonemta_py.admin.requests import (
    DestinationsRequest,
    HistoryRequest,
    ListRequest,
    RatesRequest,
    Request,
    Row,
    ShapingRequest,
    ShowRequest,
    StatusRequest,
    SummaryRequest,
    SuspendedRequest,
    TenantsRequest,
    UnreachableRequest,
    UsageRequest,
)
from zonemta_py.core import clock
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import NotFound
from zonemta_py.core.model import STATES, OutcomeKind
from zonemta_py.queue.census import TOTAL
from zonemta_py.queue.queue import Queue

# ---- The paths from addresses to providers as a matrix, those first that need attention. Pure.

COLUMNS_MAX = 4  # addresses as columns; more are cells with a heading of their own
PATHS_MAX = 100


def matrix(paths: Sequence[Row], paths_max: int = PATHS_MAX) -> dict[str, Any]:
    """The context for ``paths``, which are in the order of ``admin.egress.attention``.

    ``addresses`` is empty when they are too many for columns; ``others``: how many paths are not shown, of a provider and
    of all.
    """
    shown = paths[:paths_max]
    not_shown = Counter(path["provider"] for path in paths[paths_max:])
    providers: dict[str, dict[str, Any]] = {}
    for path in shown:
        found = providers.setdefault(
            path["provider"],
            {
                "name": path["provider"], "waiting": path["waiting"], "cells": {},
                "others": not_shown[path["provider"]], "sessions": path["provider_sessions"], "sessions_max": path["provider_sessions_max"],
            },
        )  # fmt: skip
        found["cells"][path["address"]] = cell(path)
    addresses = sorted({path["address"] for path in shown}, key=_place)
    return {
        "providers": list(providers.values()),
        "addresses": addresses if len(addresses) <= COLUMNS_MAX else [],
        "others": len(paths) - len(shown),
        "counts": Counter(state_of(path) for path in paths),
    }


def cell(path: Row) -> Row:
    """A path with its ``state``, the ``uses`` of its rates, and its last ``replies`` by class."""
    uses = [{**each, "what": ""} for each in path["rates"]]
    uses += [{**each, "what": "new sessions"} for each in path["connect_rates"]]
    uses += [{**each, "what": "lowered"} for each in path["pace_rates"][-1:]]  # that of a minute
    replies = Counter(reversed(path["last_classes"]))
    return {**path, "state": state_of(path), "uses": uses, "replies": list(replies.items())}


def state_of(path: Row) -> str:
    """The state of a path: suspended, paused, lowered or full."""
    if path["suspended"]:
        return "suspended"
    if path["paused_until_ms"]:
        return "paused"
    return "lowered" if is_lowered(path) else "full"


def _place(address: str) -> tuple[int, int, str]:
    """IPv4 before IPv6, by number; the name of what is no address comes first."""
    try:
        found = ip_address(address)
    except ValueError:
        return 0, 0, address
    return found.version, int(found), address


# ---- views

DESTINATIONS_EVERY_S = 3.0
TROUBLED_MAX = 12
DESTINATIONS_MAX = 50
HELD_MAX = 100
TENANTS_MAX = 200
ALL_TENANTS = 20_000  # more than a census counts apart
PATHS_OF_PROVIDER = 500
EVENTS_MAX = 500
RECIPIENTS_MAX = 200  # of one message
UNREACHABLE = ("unreachable", "probe")  # reasons of a destination that fails
SUSPENDED_KINDS = ("tenant", "user", "zone", "provider", "address", "domain", "mail")
NO_RATE: Row = {
    "attempts": 0,
    "delivered_per_s": 0.0,
    "deferred_per_s": 0.0,
    "bounced_per_s": 0.0,
    "p95_ms": 0,
}

Context = dict[str, Any]  # of a template


class Views:
    """The pages of a relay. ``tenant``: of the token; empty for all."""

    def __init__(self, operations: Operations, now_s: Callable[[], float] = monotonic_s) -> None:
        self._operations = operations
        self._now_s = now_s
        self._destinations: dict[DestinationsRequest, tuple[float, list[Row]]] = {}

    async def _rows(self, request: Request, tenant: str = "") -> list[Row]:
        """Rows of the answer as plain dicts. Raises LocalError, NotFound, PermissionError."""
        allowed = restrict(self._operations, request, tenant)
        return [to_plain(row) async for row in run_operation(self._operations, allowed)]

    async def _destinations_of(self, request: DestinationsRequest) -> list[Row]:
        """The rows, at most DESTINATIONS_EVERY_S old: with many destinations they cost milliseconds."""
        found_s, rows = self._destinations.get(request, (-DESTINATIONS_EVERY_S, []))
        if self._now_s() - found_s >= DESTINATIONS_EVERY_S:
            rows = await self._rows(request)
            if len(self._destinations) > DESTINATIONS_MAX:
                self._destinations.clear()
            self._destinations[request] = self._now_s(), rows
        return rows

    async def overview(self) -> Context:
        """All zones, and the destinations that have trouble."""
        (status,) = await self._rows(StatusRequest())
        rates = await self._rates("zone", 1)
        zones = await self._rows(SummaryRequest())
        silent = {*status["zones"], *rates} - {zone["zone"] for zone in zones}
        zones += [{"zone": zone, **dict.fromkeys(STATES, 0), "sessions": 0} for zone in sorted(silent)]
        for zone in zones:
            zone["total"] = sum(zone[state] for state in STATES)
            zone["rate"] = rates.get(zone["zone"], NO_RATE)
        zones.sort(key=lambda zone: (-zone["total"], zone["zone"]))
        oldest = [zone["oldest_ms"] for zone in zones if zone.get("oldest_ms")]
        per_s = {
            name: sum(rate[f"{name}_per_s"] for rate in rates.values())
            for name in ("delivered", "deferred", "bounced")
        }
        return {
            "status": status,
            "zones": zones,
            "total": sum(status["queue"].values()),
            "per_s": per_s,
            "oldest_ms": min(oldest, default=None),
            "troubled": await self._destinations_of(
                DestinationsRequest(troubled=True, limit=TROUBLED_MAX)
            ),
        }

    async def _rates(self, kind: str, minutes: int) -> dict[str, Row]:
        rows = await self._rows(RatesRequest(minutes, kind, limit=1000))
        return {row["name"]: row for row in rows}

    async def zone(self, zone: str) -> Context:
        """One zone with its destinations. Raises NotFound."""
        (status,) = await self._rows(StatusRequest())
        summary = next((row for row in await self._rows(SummaryRequest()) if row["zone"] == zone), None)
        rate = (await self._rates("zone", 1)).get(zone)
        if summary is None and zone not in status["zones"]:
            raise NotFound(f"no zone '{zone}'; zones: {', '.join(status['zones'])}")
        summary = summary or {**dict.fromkeys(STATES, 0), "sessions": 0, "oldest_ms": None}
        summary["total"] = sum(summary[state] for state in STATES)
        request = DestinationsRequest(zone=zone, limit=DESTINATIONS_MAX)
        return {
            "zone": zone,
            "summary": summary,
            "rate": rate or NO_RATE,
            "destinations": await self._destinations_of(request),
        }

    async def tenants(self) -> Context:
        """Tenants with mail, with traffic in the last hour, or suspended."""
        queued = {row["tenant"]: row["queued"] for row in await self._rows(TenantsRequest(ALL_TENANTS))}
        rates, suspended = await self._rates("tenant", 60), await self._suspended()
        names = sorted({*queued, *rates, *suspended["tenant"]}, key=lambda name: -queued.get(name, 0))
        return {
            "tenants": [
                {
                    "tenant": name,
                    "queued": queued.get(name, 0),
                    "rate": rates.get(name, NO_RATE),
                    "suspended": suspended["tenant"].get(name),
                }
                for name in names[:TENANTS_MAX]
            ]
        }

    async def _suspended(self) -> dict[str, dict[str, Row]]:
        """Rows of the suspensions of operators, by kind and name."""
        found: dict[str, dict[str, Row]] = {kind: {} for kind in SUSPENDED_KINDS}
        for row in await self._rows(SuspendedRequest()):
            for kind in found:
                if kind in row:
                    fields: Row = row["mail"] if kind == "mail" else {kind: row[kind]}
                    name = ", ".join(map(" ".join, fields.items())) if kind == "mail" else row[kind]
                    found[kind][name] = {**row, "name": name, "fields": fields}
        return found

    async def tenant(self, name: str, tenant: str) -> Context:
        """One tenant: its limits; for operators also its mail and its suspension."""
        found: Context = {"name": name, "usage": await self._rows(UsageRequest(name), tenant)}
        if tenant:
            return found
        counts = {row["tenant"]: row["queued"] for row in await self._rows(TenantsRequest(ALL_TENANTS))}
        return {
            **found,
            "queued": counts.get(name, 0),
            "rate": (await self._rates("tenant", 60)).get(name, NO_RATE),
            "suspended": (await self._suspended())["tenant"].get(name),
            "is_operators": True,
        }

    async def holds(self) -> Context:
        """Everything that is suspended or held, or does not answer, and until when."""
        request = DestinationsRequest(troubled=True, limit=TENANTS_MAX)
        troubled = await self._destinations_of(request)
        suspended = await self._suspended()
        held = await self._rows(ListRequest(state="held", limit=HELD_MAX + 1))
        return {
            "destinations": [
                row for row in troubled if row["why"] and row["why"]["name"] in UNREACHABLE
            ],
            "suspended": [(kind, row) for kind in SUSPENDED_KINDS for row in suspended[kind].values()],
            "held": held[:HELD_MAX],
            "more_held": len(held) > HELD_MAX,
            "unreachable": await self._rows(UnreachableRequest()),
        }

    async def providers(self, provider: str = "") -> Context:
        """From each address to each provider, or to ``provider``, what is allowed and used. Raises NotFound."""
        rows = [row async for row in run_operation(self._operations, ShapingRequest(provider))]
        if provider and not rows:
            raise NotFound(f"nothing to '{provider}' is limited, under way, or was refused lately")
        return {"provider": provider, **matrix(rows, PATHS_OF_PROVIDER if provider else PATHS_MAX)}

    async def search(self, key: str, tenant: str) -> Context:
        """The events of an id, an address or a Message-ID, by message, the latest first."""
        if not key:
            return {"key": "", "messages": []}
        events, problems = await self._history(key, tenant)
        messages: dict[str, list[Row]] = {}
        for event in reversed(events):
            messages.setdefault(event.get("message", ""), []).insert(0, event)
        return {
            "key": key,
            "messages": [{"id": name, "events": found} for name, found in messages.items()],
            "is_cut": len(events) >= EVENTS_MAX,
            "problems": problems,
        }

    async def _history(self, key: str, tenant: str) -> tuple[list[Row], list[str]]:
        """The events, and what is damaged or missing in the event log."""
        rows = await self._rows(HistoryRequest(key, limit=EVENTS_MAX), tenant)
        return [row for row in rows if "problem" not in row], [
            row["problem"] for row in rows if "problem" in row
        ]

    async def message(self, message: str, tenant: str) -> Context:
        """One message: where its recipients are, and what has happened. Raises NotFound."""
        events, problems = await self._history(message, tenant)
        try:
            (row,) = await self._rows(ShowRequest(message), tenant)
        except NotFound:
            if not events:
                raise
            row = None
        return {
            "message": message,
            "row": row,
            "recipients": row["recipients"][:RECIPIENTS_MAX] if row else [],
            "events": events,
            "is_cut": len(events) >= EVENTS_MAX,
            "problems": problems,
        }


# ---- The charts of the page: samples of all zones, every ten seconds for six hours. In memory only.

EVERY_S = 10.0
KEPT = 6 * 360  # samples
ZONES_MAX = 100  # with charts of their own
POINTS_MAX = 360  # of an answer
ALL = ""  # the name of what is summed over all zones
COUNTED = ("accepted", "delivered", "deferred", "bounced")  # per second
_KINDS = {
    OutcomeKind.DELIVERED: "delivered",
    OutcomeKind.DEFERRED: "deferred",
    OutcomeKind.BOUNCED: "bounced",
    OutcomeKind.EXPIRED: "bounced",
}

Totals = dict[str, Counter[str]]  # recipients since the start by COUNTED, by zone


class _Series:
    """A column for each of COUNTED, and ``queued``."""

    def __init__(self, length: int) -> None:
        self.columns = {name: array("f", bytes(4 * length)) for name in (*COUNTED, "queued")}


class Charts:
    """Samples the counters of ``queue``."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._times_ms = array("q")
        self._series: dict[str, _Series] = {}
        self._before = self._totals()
        self._sampled_s = clock.monotonic_s()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the first sample in EVERY_S."""
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self.start()
        self.sample()

    def sample(self) -> None:
        """Add a sample: what was counted since the last one."""
        now_s, totals = clock.monotonic_s(), self._totals()
        span_s = max(0.001, now_s - self._sampled_s)
        queued = {zone: row[TOTAL] for zone, row in self._queue.census.zones().items()}
        queued[ALL] = sum(queued.values())
        for zone in (*totals, *queued):
            if zone not in self._series and len(self._series) <= ZONES_MAX:
                self._series[zone] = _Series(len(self._times_ms))
        for zone, series in self._series.items():
            new, old = totals.get(zone, Counter()), self._before.get(zone, Counter())
            for name in COUNTED:
                series.columns[name].append((new[name] - old[name]) / span_s)
            series.columns["queued"].append(queued.get(zone, 0))
        self._times_ms.append(clock.now_ms())
        self._before, self._sampled_s = totals, now_s
        for column in self._columns():
            del column[:-KEPT]

    def _columns(self) -> Iterator["array[float] | array[int]"]:
        yield self._times_ms
        for series in self._series.values():
            yield from series.columns.values()

    def _totals(self) -> Totals:
        traffic, found = self._queue.traffic, {ALL: Counter[str]()}
        for zone, count in traffic.accepted.items():
            for name in (zone, ALL):
                found.setdefault(name, Counter())["accepted"] += count
        for (zone, kind, _), count in traffic.outcomes.items():
            if kind in _KINDS:
                for name in (zone, ALL):
                    found.setdefault(name, Counter())[_KINDS[kind]] += count
        return found

    def series(self, zone: str, minutes: int) -> dict[str, list[float]]:
        """``time_s`` (unix), and a column for each of COUNTED and ``queued``, means of at most POINTS_MAX steps."""
        length = min(len(self._times_ms), max(1, round(minutes * 60 / EVERY_S)))
        found = self._series.get(zone)
        if found is None or not length:
            return {"time_s": []}
        step = -(-length // POINTS_MAX)
        starts = range(len(self._times_ms) - length, len(self._times_ms), step)
        rows: dict[str, list[float]] = {"time_s": [self._times_ms[at] / 1000 for at in starts]}
        for name, column in found.columns.items():
            means = ((part := column[at : at + step], sum(part) / len(part))[1] for at in starts)
            rows[name] = [round(mean, 2) for mean in means]
        return rows
