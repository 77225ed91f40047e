"""The state of mail as an operator sees it: how many recipients are in each, and why one does not move.

A recipient has one state of STATES and one reason, the same in every view. The census counts what is on disk: waiting, deferred, not
before, held. Of those that wait, workers hold some (*in flight*), others wait for a destination that does not answer (*unreachable*),
or for the end of what an operator has suspended (*suspended*); only a running relay knows these three.

Invariants: the states of a zone add up to what the census has of it; a recipient that a worker holds is in flight whatever is
suspended; the reasons of the queue and of suspensions come before those of sending.

``Depths``, ``SuspendedMail`` and ``Reasons`` are made for one request and remember what they have asked. Operations, page and
metrics use them. Example: ``Depths(census, windows, SuspendedMail(suspended, zones)).zone("default")["unreachable"]``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from zonemta_py.admin.relay_port import RunningRelay, SuspendedView
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import AGES_MIN, USUAL_KEY, PoolKey
from zonemta_py.egress.paths import Constraint, Limit
from zonemta_py.queue.census import AGE_SLOT_MS, TOTAL, Census, Row
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import EnvelopeRecord, RecipientRecord, RecipientState, read_meta
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.ready.windows import ReadyWindows
from zonemta_py.queue.suspensions import MAIL, USER, Suspensions, named, suspended_submitter
from zonemta_py.queue.upkeep.operator import suspension_of
from zonemta_py.smtp.verdict import NO_ADDRESS

Suspended = Callable[[str], Collection[str] | None]
DNS_FAILED = "4.4.3"  # RFC 3463: the look-up of the destination failed


class SuspendedMail:
    """The destinations of a zone whose mail an operator has suspended; None: all. Answers are remembered: for one request."""

    def __init__(self, suspended: Suspensions, zones: Mapping[str, SuspendedView]) -> None:
        self._suspended = suspended
        self._zones = zones
        self._found: dict[str, Collection[str] | None] = {}

    def __call__(self, zone: str) -> Collection[str] | None:
        """Suspended destinations of ``zone``; None if all of its mail is suspended."""
        if zone not in self._found:
            view = self._zones.get(zone) if self._suspended else None
            found: Collection[str] = view.stopped() if view is not None else ()
            self._found[zone] = None if f"zone:{zone}" in self._suspended else frozenset(found)
        return self._found[zone]

    def has(self, zone: str, destination: str) -> bool:
        """True if the mail of ``destination`` is suspended, also if it has only just become due."""
        found, view = self(zone), self._zones.get(zone)
        if found is None or destination in found or f"domain:{destination}" in self._suspended:
            return True
        return view is not None and f"provider:{view.provider(destination)}" in self._suspended


def none_suspended(zone: str) -> Collection[str]:
    """Of a zone in which no operator has suspended anything."""
    return ()


def depth_of(row: Row, in_flight: int, unreachable: int, suspended: int) -> dict[str, int]:
    """A number for each of STATES. ``unreachable`` of those that wait and are not in flight, ``suspended`` of the rest."""
    waiting = max(0, row[RecipientState.WAITING] - in_flight)
    unreachable = min(waiting, unreachable)
    suspended = min(waiting - unreachable, suspended)
    return {
        "waiting": waiting - unreachable - suspended,
        "in_flight": in_flight,
        "unreachable": unreachable,
        "suspended": suspended,
        "deferred": row[RecipientState.DEFERRED],
        "not_before": row[RecipientState.NOT_BEFORE],
        "held": row[RecipientState.HELD],
    }


class Depths:
    """The depths of one moment. ``suspended``: the destinations of a zone that an operator has suspended; None: all."""

    def __init__(
        self, census: Census, windows: ReadyWindows, suspended: Suspended = none_suspended
    ) -> None:
        self._census = census
        self._windows = windows
        self._suspended = suspended

    def zone(self, zone: str) -> dict[str, int]:
        """A number of recipients for each of STATES."""
        window = self._windows.zone(zone)
        leased, whole = window.leased(), self._census.zones().get(zone, [0] * (TOTAL + 1))

        def waiting(names: Iterable[str]) -> int:
            counts = (
                self._census.destination(zone, name)[RecipientState.WAITING] - leased[name]
                for name in names
            )
            return sum(max(0, count) for count in counts)

        names, suspended = set(window.unreachable()), self._suspended(zone)
        of_operator = whole[TOTAL] if suspended is None else waiting(set(suspended) - names)
        return depth_of(whole, leased.total(), waiting(names), of_operator)

    def destinations(self, zone: str, most: int, named: Iterable[str] = ()) -> dict[str, dict[str, int]]:
        """A number for each of STATES, for the destinations with most recipients, and ``named`` ones that have any."""
        window = self._windows.zone(zone)
        leased = window.leased()
        rows = dict(self._census.largest(zone, most))
        rows.update({name: self._census.destination(zone, name) for name in named})
        suspended = self._suspended(zone)
        return {
            name: depth_of(
                row,
                leased[name],
                row[TOTAL] if window.is_unreachable(name) else 0,
                row[TOTAL] if suspended is None or name in suspended else 0,
            )
            for name, row in rows.items()
            if row[TOTAL]
        }

    def oldest_ms(self, zone: str) -> int | None:
        """When the oldest message of ``zone`` was accepted (unix ms), AGE_SLOT_MS too early at most."""
        slots = [slot for name, slot in self._census.ages() if name == zone]
        return min(slots) * AGE_SLOT_MS if slots else None

    def ages(self, now_ms: int) -> dict[str, list[int]]:
        """Recipients by zone and age: up to each of AGES_MIN, and older."""
        found: dict[str, list[int]] = {}
        for (zone, slot), count in self._census.ages().items():
            age_min = (now_ms - slot * AGE_SLOT_MS) // 60_000
            number = next((n for n, upto in enumerate(AGES_MIN) if age_min <= upto), len(AGES_MIN))
            found.setdefault(zone, [0] * (len(AGES_MIN) + 1))[number] += count
        return found


class Reasons:
    """Answers for the recipients of ``queue``; answers on destinations are remembered, so use one for each request."""

    def __init__(self, queue: Queue, relay: RunningRelay) -> None:
        self._queue = queue
        self._relay = relay
        self._by_destination: dict[tuple[str, str, PoolKey], Constraint | None] = {}
        self._meta: tuple[str, EnvelopeRecord | None] = ("", None)

    def destination(self, zone: str, destination: str) -> Constraint | None:
        """The constraint for which mail for a destination waits; of one with mail for several pools, of the first of them that waits."""
        pools = self._queue.windows.zone(zone).pool_keys(destination) or (USUAL_KEY,)
        found = (self._of_pool(zone, destination, pool) for pool in pools)
        return next((each for each in found if each is not None), None)

    def _of_pool(self, zone: str, destination: str, pool: PoolKey) -> Constraint | None:
        """The constraint for which mail for a destination that leaves from ``pool`` waits."""
        place = zone, destination, pool
        if place not in self._by_destination:
            view = self._relay.zones.get(zone)
            self._by_destination[place] = view.why(destination, pool) if view is not None else None
        return self._by_destination[place]

    def of(self, zone: str, message: str, address: str, record: RecipientRecord) -> Constraint:
        """Why a recipient is still waiting."""
        failure = self._queue.failure
        if failure is not None:
            return Constraint("queue_not_writable", str(failure), key="queue")
        match record.state:
            case RecipientState.HELD:
                return self._held(keys.deferred_key(zone, message, address), message, record)
            case RecipientState.NOT_BEFORE:
                return Constraint(
                    "not_before", "its submitter wants it sent later", until_ms=record.due_ms
                )
            case RecipientState.DEFERRED:
                return self._deferred(zone, record)
            case RecipientState.WAITING:
                return self._waiting(zone, message, address, record)

    def _held(self, key: bytes, message: str, record: RecipientRecord) -> Constraint:
        meta = self._meta_of(message)
        if meta is not None and meta.options.quarantined:
            reason = "the scanner had it held; `zonemta queue release` or `delete` decides"
            return Constraint("hold", reason, key="intake.scan")
        if name := suspension_of(self._queue.store, key):
            return self._suspended_for(name, message)
        if record.uncertain >= self._queue.poison_after:
            return Constraint("hold", record.text, record.last_ms, key="queue.poison_after")
        reply = f"; its last reply: {_reply_of(record)}" if record.code else ""
        who = f"tenant {record.held_by} holds it" if record.held_by else "it is held"
        return Constraint("hold", f"{who}; `zonemta queue release` ends that{reply}")

    def _suspended(self, meta: EnvelopeRecord, message: str) -> Constraint | None:
        """The suspension of the tenant or user of a message that waits."""
        origin, suspended = meta.origin, self._queue.suspended
        name = suspended_submitter(suspended, origin.tenant, origin.user)
        return self._suspended_for(name, message) if name else None

    def _suspended_for(self, name: str, message: str) -> Constraint:
        found = self._queue.suspended.get(name)
        kind = "mail" if name.startswith(MAIL) else "user" if name.startswith(USER) else "tenant"
        what = named(name)
        if found is None:
            text = f"the suspension of {what} is over: it is released by the running relay, or at the next start"
            return Constraint(f"{kind}_suspension", text)
        since_ms = max(found.since_ms, keys.created_ms(message))
        text = f"{what} is suspended: {found.reason}"
        return Constraint(f"{kind}_suspension", text, since_ms, found.until_ms)

    def _meta_of(self, message: str) -> EnvelopeRecord | None:
        if self._meta[0] != message:
            value = self._queue.store.get(keys.meta_key(message))
            try:
                self._meta = message, read_meta(value) if value is not None else None
            except QueueCorrupt:
                self._meta = message, None
        return self._meta[1]

    def _deferred(self, zone: str, record: RecipientRecord) -> Constraint:
        if record.due_ms <= self._queue.now():
            return Constraint("waking", "it is due, and made ready now", record.due_ms)
        name, key = "retry", f"zones.{zone}.retry"
        if not record.code and record.status in (DNS_FAILED, NO_ADDRESS):
            name = "dns" if record.status == DNS_FAILED else "no_address"
        text = f"attempt {record.attempts} failed: {_reply_of(record)}"
        return Constraint(name, text, record.last_ms, record.due_ms, key)

    def _waiting(self, zone: str, message: str, address: str, record: RecipientRecord) -> Constraint:
        queue = self._queue
        key, window = keys.waiting_key(zone, message, address), queue.windows.zone(zone)
        if window.is_leased(key):
            return Constraint("in_flight", f"attempt {record.attempts + 1} is being made")
        if not self._relay.zones:
            return Constraint("not_running", "no relay is running")
        meta = self._meta_of(message)
        if meta is None:
            return Constraint("damaged", "its message cannot be read: `zonemta queue check`")
        suspended = self._suspended(meta, message)
        if suspended is not None:
            return suspended
        if name := queue.suspended.of_recipient(meta, zone, "", record.domain):
            return self._suspended_for(name, message)
        destination = queue.windows.destination_of(zone, record.domain)
        pool = queue.windows.pool_key(zone, destination, record)
        found = self._of_pool(zone, destination, pool)
        if found is not None:
            if found.name in (Limit.UNREACHABLE, Limit.PROBE):
                return found
            since_ms = max(found.since_ms, keys.created_ms(message))  # not longer than it is here
            return replace(found, since_ms=since_ms)
        if key in window:
            return Constraint("turn", self._turn(zone, destination))
        if queue.scanning:
            return Constraint("start_up_scan", "the relay reads the mail of before its start")
        return Constraint("ready_window", self._turn(zone, destination), key="queue.ready_window")

    def _turn(self, zone: str, destination: str) -> str:
        waiting = self._queue.census.destination(zone, destination)[RecipientState.WAITING]
        submitters = self._queue.windows.zone(zone).submitters(destination)
        turns = f", {submitters} submitters take turns" if submitters > 1 else ""
        return f"{waiting} recipients wait for this destination, which is being served{turns}"


def _reply_of(record: RecipientRecord) -> str:
    return " ".join(str(part) for part in (record.code, record.status, record.text) if part)
