"""Why a recipient does not move: exactly one answer, the same words in every view."""

from collections.abc import Collection, Mapping

from zonemta_py.admin.relay_port import RunningRelay, SuspendedView
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import USUAL_POOL
from zonemta_py.egress.paths import Constraint, Limit
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import EnvelopeRecord, RecipientRecord, RecipientState, read_meta
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import MAIL, USER, Suspensions, named, suspended_submitter
from zonemta_py.queue.upkeep.operator import suspension_of
from zonemta_py.smtp.verdict import NO_ADDRESS

DNS_FAILED = "4.4.3"  # RFC 3463: the look-up of the destination failed


class SuspendedMail:
    """The destinations of a zone whose mail an operator has suspended; None: all. Answers are remembered: for one request."""

    def __init__(self, suspended: Suspensions, zones: Mapping[str, SuspendedView]) -> None:
        self._suspended = suspended
        self._zones = zones
        self._found: dict[str, Collection[str] | None] = {}

    def __call__(self, zone: str) -> Collection[str] | None:
        """Those of ``zone``."""
        if zone not in self._found:
            view = self._zones.get(zone) if self._suspended else None
            found: Collection[str] = view.stopped() if view is not None else ()
            self._found[zone] = None if f"zone:{zone}" in self._suspended else frozenset(found)
        return self._found[zone]

    def has(self, zone: str, destination: str) -> bool:
        """Whether the mail of ``destination`` is suspended, also if it has only just become due."""
        found, view = self(zone), self._zones.get(zone)
        if found is None or destination in found or f"domain:{destination}" in self._suspended:
            return True
        return view is not None and f"provider:{view.provider(destination)}" in self._suspended


class Reasons:
    """Answers for the recipients of ``queue``; answers on destinations are remembered, so use one for each request."""

    def __init__(self, queue: Queue, relay: RunningRelay) -> None:
        self._queue = queue
        self._relay = relay
        self._by_destination: dict[tuple[str, str, str], Constraint | None] = {}
        self._meta: tuple[str, EnvelopeRecord | None] = ("", None)

    def destination(self, zone: str, destination: str) -> Constraint | None:
        """What keeps mail for a destination waiting; of one with mail for several pools, the first of them that waits."""
        pools = self._queue.windows.zone(zone).pool_keys(destination) or (USUAL_POOL,)
        found = (self._of_pool(zone, destination, pool) for pool in pools)
        return next((each for each in found if each is not None), None)

    def _of_pool(self, zone: str, destination: str, pool: str) -> Constraint | None:
        """What keeps mail for a destination waiting that leaves from ``pool``."""
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
