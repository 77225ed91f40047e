"""One destination of a zone and its workers, and what the scheduler of a zone asks before one starts. Pure.

``Destination``: whether it answers, how many sessions it accepts, how many recipients in a transaction. ``WorkerSlot``: a worker
that serves it, with the permit that it has. ``Admission``: the limits that are not those of the zone; ``ZoneEgress`` has those of
providers and of our addresses, ``Unlimited`` none. Times are monotonic seconds.

States of a destination: slow start ─▶ full ─▶ at a learned limit (for LIMIT_S, then one session more is tried); from each of these
failing, when no session could be opened, until a probe has one. States of a slot::

    started: no lease, no session ─▶ has a lease, and needs a token ─▶ has a session ─▶ has a lease … ─▶ ended

Invariants:

- ``active`` workers are ``starting`` or ``established``; ``working`` of them hold a session now.
- At most one worker of a destination has had no lease yet (``has_newcomer``): a single message wakes a single worker.
- While a destination fails no worker starts but one at a time, from ``down_until_s`` on.
- ``permit`` is FREE, or counts in the limits until ``SharedEgress.release``.

Callers: the ``Scheduler`` makes slots in ``next`` and takes them back in ``ended``; workers report what they learn of a
destination; ``pipeline.simulate`` does the same over a virtual clock.

Example: with ``connections_per_domain`` of 20, a destination with much mail has 1 worker until its first session, then 2, 4, 8, 16
and 20. Source: the slow start of TCP, RFC 5681 section 3.1.
"""

from enum import IntEnum
from typing import NamedTuple, Protocol

from zonemta_py.core.model import PoolKey
from zonemta_py.egress.limits import FREE, Permit
from zonemta_py.egress.paths import Binding, Limit
from zonemta_py.egress.sources import EgressRoute

LIMIT_S = 60.0  # how long a learned connection limit applies before one more session is tried
SUSPENDED_MAX_S = 300.0
DOTS_LOST = 2  # in a row, after which a destination is unreachable
RECIPIENTS_LIMIT_S = 600.0  # how long a learned limit of recipients applies


class Destination:
    """The workers of one destination, at most ``connections_max``.

    ``active`` workers serve it; ``starting`` of them have had no session yet, ``working`` hold one now.
    Slow start: one worker until its first session, then as many may be starting as have had one, so the
    number doubles with every round of sessions. They start one after the other, each when the one before has
    taken a lease (``has_newcomer``): a single message wakes a single worker.

    After a failure to connect the destination is unreachable until ``down_until_s``; then one worker at a
    time probes it until a session opens. A failure while other workers hold sessions reveals the peer's
    connection limit; after LIMIT_S one session more is tried at a time.
    """

    __slots__ = (
        "_limit",
        "_limit_since_s",
        "_limit_until_s",
        "_recipients_max",
        "_recipients_until_s",
        "active",
        "blocked",
        "blocked_since_s",
        "connections_max",
        "dots_lost",
        "down_until_s",
        "failing",
        "failing_since_s",
        "has_newcomer",
        "name",
        "reason",
        "starting",
        "working",
    )

    def __init__(self, name: str, connections_max: int) -> None:
        self.name = name
        self.connections_max = connections_max
        self.active = 0
        self.starting = 0
        self.working = 0
        self.has_newcomer = False
        self.blocked = False  # a worker was refused since the last session opened
        self.blocked_since_s = 0.0
        self.failing = False
        self.failing_since_s = 0.0
        self.down_until_s = 0.0
        self.reason = ""
        self.dots_lost = 0  # in a row: transactions without a reply to the final dot
        self._limit = 0  # 0: none is known
        self._limit_since_s = 0.0
        self._limit_until_s = 0.0
        self._recipients_max = 0
        self._recipients_until_s = 0.0

    @property
    def established(self) -> int:
        """The workers that have had a session."""
        return self.active - self.starting

    def may_start(self, now_s: float) -> bool:
        """True if another worker may take its mail now."""
        if self.failing:
            return self.active == 0 and now_s >= self.down_until_s
        if self.has_newcomer or self.starting >= max(1, self.established):
            return False
        most = self.connections_max
        if self._limit:
            most = min(most, self._limit + (now_s >= self._limit_until_s))
        return self.active < most

    def block(self, now_s: float) -> None:
        """A worker was refused."""
        if not self.blocked:
            self.blocked = True
            self.blocked_since_s = now_s

    def binding(self, now_s: float) -> Binding | None:
        """Why no further worker may start, if so; of one that does not answer, in any case."""
        if self.failing and now_s < self.down_until_s:
            return Binding(Limit.UNREACHABLE, self.failing_since_s, self.down_until_s, self.reason)
        if self.failing and self.active:
            return Binding(Limit.PROBE, self.failing_since_s, 0.0, self.reason)
        if self.may_start(now_s):
            return None
        since_s = self.blocked_since_s if self.blocked else now_s
        if self.active >= self.connections_max:
            most = f"{self.active} sessions are open or being opened, of {self.connections_max}"
            return Binding(Limit.CONNECTIONS_PER_DOMAIN, since_s, 0.0, most)
        if self._limit and self.active >= self._limit:
            learned = f"it refused more than {self._limit} sessions"
            until_s = self._limit_until_s if now_s < self._limit_until_s else 0.0
            return Binding(Limit.LEARNED_LIMIT, self._limit_since_s, until_s, learned)
        opening = f"{self.starting} sessions are being opened, {self.established} have been"
        return Binding(Limit.SLOW_START, since_s, 0.0, opening)

    def limit_reached(self, now_s: float) -> None:
        """The peer accepts no session beyond those in use."""
        self._limit = max(1, self.working)
        self._limit_since_s = now_s
        self._limit_until_s = now_s + LIMIT_S

    def dot_lost(self) -> bool:
        """No reply to a final dot was received. Returns whether the destination fails: once may be because of the message."""
        self.dots_lost += 1
        return self.dots_lost >= DOTS_LOST

    def learn_recipients_max(self, most: int, now_s: float) -> None:
        """The peer takes no more than ``most`` recipients in one transaction."""
        self._recipients_max = most
        self._recipients_until_s = now_s + RECIPIENTS_LIMIT_S

    def recipients(self, most: int, now_s: float) -> int:
        """How many recipients the next transaction may have. ``most``: those that the zone allows."""
        return min(most, self._recipients_max) if now_s < self._recipients_until_s else most

    def session_opened(self) -> None:
        """A worker has a session. More than the learned limit: the limit has grown."""
        self.working += 1
        if self._limit:
            self._limit = max(self._limit, self.working)

    def failed(self, until_s: float, now_s: float, reason: str) -> None:
        """No session could be opened: suspend until ``until_s``."""
        if not self.failing:
            self.failing_since_s = now_s
        self.failing = True
        self.down_until_s = max(self.down_until_s, until_s)
        self.reason = reason

    def answered(self) -> None:
        """A session was opened: the destination is reachable."""
        self.failing = False
        self.reason = ""


# Messages: fewer follow the weights closely, more displace fewer sessions of other addresses.
SOURCE_RUN = 10


class TurnQueue(IntEnum):
    """The turn queues of destinations with mail. A destination in one of the first two is in another one as well."""

    URGENT = 0  # has answered lately, and has mail of a low-volume submitter
    FRESH = 1  # as NEW, and its mail has just come; the newest first
    KNOWN = 2  # has answered lately
    NEW = 3  # has not
    FAILING = 4  # its suspension is over, one worker may probe it


class WorkerSlot:
    """One worker of a zone: its destination, and what it counts for.

    ``established``: it has had a session. ``first_lease``: it has had no lease. ``needs_token``: it has no token yet for
    its current lease. ``turn_queue``: where its destination was when it started. ``session_within_s``: see ``TurnQueues``.
    ``permit``: what it may send, and from where; ``pool_key``: whose mail, see ``Admitted``.
    ``source``: the source address that was drawn for messages without an attempt; ``source_run`` of them have left from it.
    ``route``: where the mail of its destination goes, as it was when it was asked whether it may continue.
    ``yields``: it ends because others wait for what it uses.
    """

    __slots__ = (
        "destination",
        "established",
        "first_lease",
        "needs_token",
        "permit",
        "pool_key",
        "route",
        "route_version",
        "session_within_s",
        "source",
        "source_run",
        "turn_queue",
        "yields",
    )  # fmt: skip

    def __init__(
        self,
        destination: Destination,
        turn_queue: TurnQueue,
        permit: Permit = FREE,
        pool_key: PoolKey | None = None,
        *,
        session_within_s: float = 0.0,
    ) -> None:
        self.destination = destination
        self.permit = permit
        self.pool_key = pool_key
        self.turn_queue = turn_queue
        self.session_within_s = session_within_s
        self.established = False
        self.first_lease = True
        self.needs_token = True
        self.source = ""
        self.source_run = 0
        self.yields = False
        self.route: EgressRoute | None = None
        self.route_version = -1  # of the settings that ``route`` is made of

    def note_source(self, source: str) -> None:
        """A message without an attempt has left from ``source``: retries must not draw new mail to their address."""
        self.source_run = self.source_run + 1 if source == self.source else 1
        self.source = source

    @property
    def redraw_source(self) -> bool:
        """True if the address of its next message without an attempt is drawn by weight: SOURCE_RUN have had this one."""
        return self.source_run > 0 and self.source_run % SOURCE_RUN == 0


class Admitted(NamedTuple):
    """The permit of a worker, and its mail: only that which leaves from ``pool_key`` (``MailPools`` of the queue); None: any."""

    permit: Permit
    pool_key: PoolKey | None = None


ANY_MAIL = Admitted(FREE)


class Admission(Protocol):
    """The limits of providers and of our addresses. A destination that may not be served waits there, until ``ready`` is called for it."""

    def looks_up(self, destination: str) -> bool:
        """True if the hosts of a destination that has not answered lately are looked up first; ``ready`` will be called for it."""

    def admit(self, destination: str) -> Admitted | None:
        """Return what a worker for ``destination`` may send; None: nothing now, ``ready`` will be called for it when it may."""

    def skipped(self, destination: str) -> None:
        """The destination cannot be served now for a reason of the zone: pass its turn to the next one that waits."""

    def no_worker_starts(self) -> None:
        """No other worker can start now: pass the capacity that is offered to the zone to others."""

    def no_mail(self, destination: str) -> None:
        """The destination has no mail: it waits for nothing any more."""

    def may_continue(self, slot: WorkerSlot) -> bool:
        """True if the worker may send another message, for which its permit is renewed; else it has to end."""

    def has_waiters(self, slot: WorkerSlot) -> bool:
        """True if other mail waits for what the worker uses, so that it is to end."""

    def ended(self, slot: WorkerSlot) -> None:
        """The worker has ended: release its permit, and give turns to what can be served now."""

    def binding(self, destination: str, now_s: float, pool_key: PoolKey) -> Binding | None:
        """Return the limit that keeps its mail from ``pool_key`` waiting, with times in monotonic seconds; None: no limit does."""


class Unlimited:
    """The admission of a zone without such limits."""

    def looks_up(self, destination: str) -> bool:
        """Nothing depends on its hosts."""
        return False

    def admit(self, destination: str) -> Admitted | None:
        """Everything is allowed."""
        return ANY_MAIL

    def skipped(self, destination: str) -> None:
        """There are no turns."""

    def no_worker_starts(self) -> None:
        """Nothing is offered."""

    def no_mail(self, destination: str) -> None:
        """Nothing waits."""

    def may_continue(self, slot: WorkerSlot) -> bool:
        """Everything is allowed."""
        return True

    def has_waiters(self, slot: WorkerSlot) -> bool:
        """Nothing waits."""
        return False

    def ended(self, slot: WorkerSlot) -> None:
        """Nothing is counted."""

    def binding(self, destination: str, now_s: float, pool_key: PoolKey) -> Binding | None:
        """Nothing waits."""
        return None
