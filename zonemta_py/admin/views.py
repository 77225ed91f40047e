"""The operations that show the queue: depths, recipients, reasons, rates. They change nothing."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from heapq import nlargest

from zonemta_py.admin.depths import Depths
from zonemta_py.admin.reasons import Reasons, RunningRelay, StoppedMail
from zonemta_py.admin.requests import (
    DestinationsRequest,
    ListRequest,
    RatesRequest,
    Row,
    ShapeRequest,
    ShowRequest,
    StateRequest,
    StatusRequest,
    SummaryRequest,
    TenantsRequest,
    WhyRequest,
    wanted_messages,
)
from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import LocalError, NotFound, UnknownName
from zonemta_py.core.model import AGES_MIN, STATES
from zonemta_py.queue.census import TOTAL, Census, count_all, zones_on_disk
from zonemta_py.queue.format.keys import mark_key, meta_key, waiting_key
from zonemta_py.queue.format.records import RecipientState, read_meta, read_recipient_record
from zonemta_py.queue.messages import recipients_of
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import part_of_key
from zonemta_py.queue.traffic import COUNTED, WINDOWS_MIN, TrafficRate
from zonemta_py.queue.upkeep.inspect import MessageLabels, message_row, recipient_rows, state_of_message

SLICE_ROWS = 500
TOP_DESTINATIONS = 10
DESTINATIONS_OF_ZONE = 100  # that are looked at
KINDS = ("zone", "destination", "source", "tenant")  # of rates
NO_RATE = TrafficRate(dict.fromkeys(COUNTED, 0), 0.0, 0, 0)


class ViewOperations:
    """A part of ``Operations``."""

    def __init__(self, queue: Queue, relay: RunningRelay) -> None:
        self._queue = queue
        self._relay = relay

    def require_zone(self, zone: str | None) -> None:
        """Raises UnknownName for a zone that the running relay does not have, and that has no mail."""
        zones = self._relay.zones
        if zone and zones and zone not in zones and zone not in zones_on_disk(self._queue.store):
            raise UnknownName(f"zone: there is no zone '{zone}'")

    async def _census(self) -> Census:
        """That of the running relay; else the queue is counted."""
        census = self._queue.census
        if not census.is_complete and not self._queue.counting:
            for counted in count_all(self._queue.store, self._queue.windows.destination_of):
                await asyncio.sleep(0)
                census = counted or census
        return census

    def _stopped(self) -> StoppedMail:
        return StoppedMail(self._queue.suspended, self._relay.zones)

    def _depths(self, census: Census) -> Depths:
        return Depths(census, self._queue.windows, self._stopped())

    async def summary(self, request: SummaryRequest) -> AsyncIterator[Row]:
        """A row for each zone."""
        queue, census = self._queue, await self._census()
        depths, next_due_ms = self._depths(census), queue.deferral.next_due_ms()
        reasons = Reasons(queue, self._relay)
        for zone in census.zones():
            suspended = queue.windows.zone(zone).suspended()[:TOP_DESTINATIONS]
            suspensions = {
                name: to_plain(why)
                for name in suspended
                if (why := reasons.destination(zone, name)) is not None
            }
            yield {
                "zone": zone,
                **depths.zone(zone),
                "counting": not census.is_complete,
                "sessions": self._relay.zones[zone].sessions if zone in self._relay.zones else 0,
                "oldest_ms": depths.oldest_ms(zone),
                "next_due_ms": next_due_ms.get(zone),
                "destinations": {
                    name: row[TOTAL] for name, row in census.largest(zone, TOP_DESTINATIONS)
                },
                "suspensions": suspensions,
            }

    async def destinations(self, request: DestinationsRequest) -> AsyncIterator[Row]:
        """A row for each: ``zone``, ``destination``, its ``provider``, STATES, ``total``, ``why``, what was attempted in 5 minutes
        for the destination in all zones (``recent``), and the last ``reply`` that was no success.

        ``zone`` is empty where nothing is queued any more: rates are by destination only.
        """
        queue, census = self._queue, await self._census()
        reasons, depths, traffic = (
            Reasons(queue, self._relay),
            self._depths(census),
            queue.traffic,
        )
        rates = traffic.rates(traffic.destinations, 5)
        found: dict[tuple[str, str], dict[str, int]] = {}
        for zone in census.zones():
            if request.zone in (None, zone):
                named = {name for name, rate in rates.items() if _failures(rate)}
                named.update(queue.windows.zone(zone).suspended())
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
            yield {
                "zone": zone,
                "destination": name,
                "provider": self._relay.zones[zone].provider(name) if zone in self._relay.zones else "",
                **states,
                "total": sum(states.values()),
                "why": to_plain(why),
                "recent": {**rate.counts, "p95_ms": rate.p95_ms},
                "reply": traffic.failures.get(name, "") if _failures(rate) else "",
            }
            sent += 1
            if sent >= request.limit:
                return

    async def tenants(self, request: TenantsRequest) -> AsyncIterator[Row]:
        """A row with ``tenant`` and ``queued`` for each that has mail, most first."""
        queued = (await self._census()).tenants()
        for name, count in nlargest(request.limit, queued.items(), key=lambda item: item[1]):
            yield {"tenant": name, "queued": count}

    async def shape(self, request: ShapeRequest) -> AsyncIterator[Row]:
        """A row for each destination: ``zone``, ``destination``, ``total``, and ``ages``, up to each of AGES_MIN and older."""
        queue, now_ms = self._queue, self._queue.now()
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
            yield {"zone": zone, "destination": destination, "total": sum(ages), "ages": ages}

    async def list(self, request: ListRequest) -> AsyncIterator[Row]:
        """A row for each recipient."""
        found, labels, reasons = 0, MessageLabels(self._queue.store), Reasons(self._queue, self._relay)
        stopped = self._stopped()
        for number, row in enumerate(self._rows_after(request, labels)):
            is_passed = "message" not in row
            if is_passed or number % SLICE_ROWS == 0:
                await asyncio.sleep(0)
            if is_passed:
                continue
            record = row.pop("record")
            row["state"] = self._state(row, stopped)
            if request.domain not in (None, row["domain"]) or request.state not in (None, row["state"]):
                continue
            row.update(labels.of(row["message"]))
            row["why"] = to_plain(reasons.of(row["zone"], row["message"], row["recipient"], record))
            yield row
            found += 1
            if found == request.limit:
                return

    def _rows_after(self, request: ListRequest, labels: MessageLabels) -> Iterator[Row]:
        """The recipients behind ``request.after``. Raises LocalError."""
        try:
            is_held = request.state == RecipientState.HELD.name.lower()
            after = request.after.encode()
            wants = wanted_messages(request, labels)
            return recipient_rows(self._queue.store, request.zone, after, held=is_held, wants=wants)
        except ValueError as exc:
            raise LocalError(f"after: {exc}") from exc

    def tenant_of(self, message: str) -> str | None:
        """Whose mail a message is; None when there is no such message."""
        if self._queue.store.get(mark_key(message)) is None:
            return None
        tenant: str = MessageLabels(self._queue.store).of(message)["tenant"]
        return tenant

    def is_quarantined(self, message: str) -> bool:
        """Whether a scanner had the message held."""
        value = self._queue.store.get(meta_key(message))
        return value is not None and read_meta(value).options.quarantined

    def may_release(self, message: str, tenant: str) -> bool:
        """Whether ``tenant`` itself holds recipients of the message, or no one does."""
        value, is_held = self._queue.store.get(meta_key(message)), False
        zones = read_meta(value).zones if value is not None else ()
        for _, found in recipients_of(self._queue.store, message, zones):
            record = read_recipient_record(found)
            if record.state is RecipientState.HELD:
                is_held = True
                if record.held_by == tenant:
                    return True
        return not is_held

    def _state(self, row: Row, stopped: StoppedMail) -> str:
        """One of STATES, for a recipient that waits by what the running relay knows."""
        state: str = row["state"]
        if state == "waiting":
            zone, windows = row["zone"], self._queue.windows
            window = windows.zone(zone)
            if window.is_leased(waiting_key(zone, row["message"], row["recipient"])):
                return "in_flight"
            destination = windows.destination_of(zone, row["domain"])
            if window.is_suspended(destination):
                return "suspended"
            if stopped.has(zone, destination):
                return "stopped"
        return state

    async def show(self, request: ShowRequest) -> AsyncIterator[Row]:
        """One row. Raises LocalError when there is no such message."""
        with self._queue.store.frozen() as view:
            row = message_row(view, request.message)
        if row is None:
            raise no_message(request.message)
        reasons, stopped = Reasons(self._queue, self._relay), self._stopped()
        for recipient in row["recipients"]:
            record = recipient.pop("record")
            recipient["state"] = self._state({**recipient, "message": request.message}, stopped)
            why = reasons.of(recipient["zone"], request.message, recipient["recipient"], record)
            recipient["why"] = to_plain(why)
        yield row

    async def why(self, request: WhyRequest) -> AsyncIterator[Row]:
        """A row for each recipient, with ``state`` and ``why``. Raises LocalError when there is none."""
        found = False
        async for row in self.show(ShowRequest(request.message)):
            for recipient in row["recipients"]:
                if request.recipient in (None, recipient["recipient"]):
                    found = True
                    yield {name: recipient[name] for name in ("recipient", "zone", "state", "why")}
        if not found:
            raise no_message(f"{request.message} to {request.recipient}")

    async def state(self, request: StateRequest) -> AsyncIterator[Row]:
        """One row."""
        with self._queue.store.frozen() as view:
            yield state_of_message(view, request.message)

    async def status(self, request: StatusRequest) -> AsyncIterator[Row]:
        """One row. Raises LocalError when no relay is running."""
        if self._relay.status is None:
            raise LocalError("no relay is running")
        queue, reasons = self._queue, Reasons(self._queue, self._relay)
        depths = self._depths(queue.census)
        zones = {zone: depths.zone(zone) for zone in queue.census.zones()}
        suspended = [(zone, name) for zone in zones for name in queue.windows.zone(zone).suspended()]
        why = {place: reasons.destination(*place) for place in suspended[:TOP_DESTINATIONS]}
        traffic = queue.traffic
        rates = traffic.rates(traffic.zones, 5).values()
        covered_s = max([1.0, *(rate.covered_s for rate in rates)])
        yield {
            **self._relay.status(),
            "counting": not queue.census.is_complete,
            "queue": {state: sum(zone[state] for zone in zones.values()) for state in STATES},
            "per_s": {
                name: round(sum(rate.counts[name] for rate in rates) / covered_s, 2) for name in COUNTED
            },
            "suspended": len(suspended),
            "suspensions": [
                {"zone": zone, "destination": name, "why": to_plain(found)}
                for (zone, name), found in why.items()
            ],
            "suspended_submitters": queue.suspended.submitters(),
            "suspended_sending": queue.suspended.sending(),
            "suspended_mail": [str(part_of_key(name)) for name in queue.suspended.parts()],
        }

    async def rates(self, request: RatesRequest) -> AsyncIterator[Row]:
        """A row for each zone, destination, source address and tenant with traffic in the last ``minutes``.

        ``kind`` and ``name``, COUNTED with what there was per second, ``p50_ms`` and ``p95_ms`` of the times of attempts.
        """
        if request.minutes not in WINDOWS_MIN:
            raise LocalError(f"minutes: expected one of {', '.join(map(str, WINDOWS_MIN))}")
        traffic = self._queue.traffic
        tables = traffic.zones, traffic.destinations, traffic.sources, traffic.tenants
        for kind, counts in zip(KINDS, tables, strict=True):
            if request.kind not in (None, kind):
                continue
            found = traffic.rates(counts, request.minutes)
            busiest = nlargest(request.limit, found.items(), key=lambda item: item[1].counts["attempts"])
            for name, rate in busiest:
                seconds = max(1.0, rate.covered_s)
                per_s = {
                    f"{each}_per_s": round(count / seconds, 3) for each, count in rate.counts.items()
                }
                yield {
                    "kind": kind,
                    "name": name,
                    **rate.counts,
                    **per_s,
                    "covered_s": round(rate.covered_s, 1),
                    "p50_ms": rate.p50_ms,
                    "p95_ms": rate.p95_ms,
                }


def _failures(rate: TrafficRate) -> int:
    return rate.counts["deferred"] + rate.counts["bounced"]


def no_message(text: str) -> NotFound:
    """What an operation on a message that is not there raises."""
    if "@" in text.partition(" ")[0]:
        return NotFound(
            f"{text} is no queue id: `zonemta history` finds the messages to an address, `zonemta queue list` those that wait"
        )
    return NotFound(f"no message {text} in the queue; `zonemta history` has those that have left it")
