"""The limits of sending that all zones of a relay share, and the port through which they meet the world. Pure.

``SharedEgress`` answers for one source address and one provider: may a session open, may a message be sent, which
addresses of a pool can reach these hosts, has an operator suspended something. ``ZoneEgress`` (whose turn is it to wait?) and
``MessageEgress`` (from where does this message leave, and what did its replies change?) ask it; there is one for a queue.

State: permits and warm-up (``EgressLimits``), wait lists, pools and the table of providers, and the rules of shaping. Two caches are
about these: ``forget_caches`` must follow every change of what ``is_free`` says; ``use`` drops that of ``sources``, too.

The port is the methods that raise NotImplementedError or say that there is nothing: the clock, the timer, the queue's mail,
its suspensions, and the look-ups of providers. ``delivery.egress`` has them over the queue and the event loop, and
``pipeline.simulate`` over a virtual clock, so both follow the same rules:

    egress.use(table, pools, controller, rules)
    permit = egress.take("google", egress.sources("default", ("ipv4",)), egress.now_ms())
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from zonemta_py.config.providers import NO_LIMITS, ProviderTable
from zonemta_py.config.sending import ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRules
from zonemta_py.core.model import Attempt, PathKey, PoolKey
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.controller import ShapingChange, slowed_warmup
from zonemta_py.egress.limits import FREE, EgressLimits, Permit
from zonemta_py.egress.paths import UNTIL_EVENT, Limit, Refusal
from zonemta_py.egress.rules import POOL, ProviderReply, Reroute, RerouteKey, ShapingEngine
from zonemta_py.egress.sources import BOTH, limits_of_addresses, names_in_pools, usable
from zonemta_py.egress.waiting import WaitLists
from zonemta_py.egress.warmup import Warming
from zonemta_py.events.schema import Event
from zonemta_py.queue.suspensions import Suspension
from zonemta_py.smtp.mx_order import MxAnswer

SUSPENDED_MIN_MS = 1000  # before mail tries again whether a suspension has ended
FREE_MAX = 100_000  # pairs of pool and provider that are remembered

Puts = list[tuple[bytes, bytes]]  # keys and values to be stored; an empty value deletes
Resolve = Callable[[str], Awaitable[MxAnswer]]


class Applied(NamedTuple):
    """The changes that followed from changes of shaping: all of them, those of warm-up last, and the schedules that they slowed down."""

    changes: Sequence[ShapingChange]
    warming: Sequence[Warming]


class ZoneMail(Protocol):
    """The mail of a zone that is in memory."""

    def pool_keys(self, destination: str) -> Sequence[PoolKey]:
        """The pools from which the mail of a destination leaves, the next one first; none without mail."""


class WaitingMail(Protocol):
    """The mail that waits, see ``ReadyWindows`` of the queue."""

    @property
    def zone(self) -> Callable[[str], ZoneMail]:
        """A function from the name of a zone to its mail."""

    def pool_keys(self, zone: str, destination: str) -> Sequence[PoolKey]:
        """As ``ZoneMail.pool_keys``, at least one; mail on disk may be read for it."""


class Suspended(Protocol):
    """The suspensions of an operator, by names such as ``zone:bulk``; ``Suspensions`` of the queue is one."""

    @property
    def version(self) -> int:
        """A number that is greater after each change."""

    def __bool__(self) -> bool:
        """True if anything may be suspended; else ``get`` need not be asked."""

    def get(self, name: str) -> Suspension | None:
        """The suspension of ``name``; None if there is none, or its time is over."""


class SharedEgress(EgressLimits):
    """One for all zones of a queue. ``mail`` waits there; ``suspended``: by an operator."""

    def __init__(self, mail: WaitingMail, suspended: Suspended) -> None:
        self.mail = mail
        self.suspended = suspended
        self._suspensions = suspended.version  # that ``is_free`` is about
        self.wait_lists = WaitLists(self.arm)
        super().__init__(self.wait_lists.capacity_on_path)
        self.engine = ShapingEngine()
        self.table = ProviderTable({})
        self.pools: Mapping[str, Sequence[PoolAddress]] = {}
        self._free: dict[tuple[str, str], bool] = {}  # by pool and provider
        self._sources: dict[tuple[str, tuple[str, ...]], list[PoolAddress]] = {}  # by pool and families
        # When paces come up and reroutes end, a heap; some are too early.
        self._steps: list[tuple[int, PathKey]] = []

    def use(
        self,
        table: ProviderTable,
        pools: Mapping[str, Sequence[PoolAddress]],
        controller: ControllerSettings,
        rules: ShapingRules,
    ) -> None:
        """Use other settings; what is under way, and what was used, continues to count. Paces stay until they have come up."""
        self.table, self.pools = table, pools

        self.permits.configure(lambda name: table.settings(name).limits, limits_of_addresses(pools))
        self.engine.configure(
            controller, rules, lambda name: table.settings(name).limits, names_in_pools(pools)
        )
        self._sources.clear()
        self.forget_caches()

    def forget_caches(self) -> None:
        """Find out again what is free: a limit, a pace, a pool or a suspension has changed."""
        self._free.clear()

    # ---- the port

    def now_ms(self) -> int:
        """Unix ms of a clock that is never set."""
        raise NotImplementedError

    def steady_ms(self, calendar_ms: int) -> int:
        """The time of that clock at ``calendar_ms`` (unix ms), see ``calendar_ms``."""
        return calendar_ms

    def arm(self) -> None:
        """Set the timer for ``due_ms``, which may have become earlier; then ``run_due`` is to be called."""
        raise NotImplementedError

    def provider(self, domain: str) -> str | None:
        """The provider of ``domain``; None: its hosts must be looked up."""
        raise NotImplementedError

    def families(self, domain: str) -> str:
        """Over which addresses the hosts of ``domain`` can be reached, as far as that is known."""
        return BOTH

    def must_look_up(self, domain: str) -> bool:
        """True if its hosts must be found before its mail leaves: the last look-up found none."""
        return False

    def asks_hosts(self, domain: str) -> bool:
        """True if the next request to ``domain`` is to find its hosts again."""
        return False

    def lacks_hosts(self, domain: str) -> bool:
        """True if the last look-up found none: its provider is only a name for it."""
        return False

    def look_up(self, domain: str, resolve: Resolve, then: Callable[[], None]) -> None:
        """Look up the hosts of ``domain``, and call ``then``."""
        raise NotImplementedError

    def looks_up(self, domain: str) -> bool:
        """True if ``domain`` is being looked up."""
        return False

    def may_look_ahead(self) -> bool:
        """True if one more domain may be looked up before its turn."""
        return False

    def learn(self, domain: str, answer: MxAnswer) -> None:
        """The MX hosts of ``domain`` were found."""

    def end(self, permit: Permit, sent: int, opened: int) -> Puts:
        """The message of ``permit`` has ended; ``sent``: its recipients that the peer saw. Returns what is to be stored."""
        self.finish(permit, sent, opened, self.now_ms())
        return []

    def store(self, puts: Puts) -> None:
        """Store what ``end`` returned, where no settle follows."""

    def classified(
        self, attempts: Sequence[Attempt | None], provider: str, sender: str
    ) -> Sequence[Attempt | None]:
        """``attempts`` of mail of ``sender`` with ``provider`` and the classes of their replies."""
        raise NotImplementedError

    def replied(
        self, replies: Sequence[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Recipients of ``message`` have their replies (unix ms of the calendar): events of what they change, and what is to be stored."""
        raise NotImplementedError

    # ---- what an operator has suspended

    def suspension(self, kind: str, name: str) -> Suspension | None:
        """The suspension of a zone, provider, address or domain by an operator, if there is one now."""
        return self.suspended.get(f"{kind}:{name}") if self.suspended else None

    def stopped_address(self, name: str) -> Refusal | None:
        stopped = self.stopped(("address", name))
        return None if stopped is None else stopped[1]

    def stopped(self, *what: tuple[str, str]) -> tuple[str, Refusal] | None:
        """The first of ``what`` (kind, name) that an operator has suspended, and the refusal for it."""
        if not self.suspended:
            return None
        for kind, name in what:
            found = self.suspension(kind, name)
            if found is not None:
                return f"{kind}:{name}", self._suspended_until(kind, name, found)
        return None

    def _suspended_until(self, kind: str, name: str, found: Suspension) -> Refusal:
        reason = f": {found.reason}" if found.reason else ""
        until_ms = UNTIL_EVENT
        if found.until_ms:  # of the calendar; the clock may have been set back a moment ago
            until_ms = max(self.steady_ms(found.until_ms), self.now_ms() + SUSPENDED_MIN_MS)
        return Refusal(Limit.OPERATOR, until_ms, f"{kind} {name} is suspended{reason}")

    # ---- what the zones ask

    def is_free(self, pool: str, provider: str) -> bool:
        """True if nothing can refuse mail from ``pool`` to ``provider``."""
        if self._suspensions != self.suspended.version:
            self._suspensions = self.suspended.version
            self.forget_caches()
        free = self._free.get((pool, provider))
        if free is None:
            settings = self.table.settings(provider)
            free = (
                not self.is_disabled(pool)
                and settings.limits == NO_LIMITS
                and settings.family == BOTH
                and not any(self.is_limited(provider, entry) for entry in self.pools[pool])
            )
            if len(self._free) > FREE_MAX:
                self._free.clear()
            self._free[pool, provider] = free
        return free

    def sources(self, pool: str, families: tuple[str, ...]) -> list[PoolAddress]:
        """The addresses of ``pool`` that may be used with hosts of ``families``."""
        found = self._sources.get((pool, families))
        if found is None:
            found = self._sources[pool, families] = usable(self.pools[pool], families)
        return found

    def is_disabled(self, pool: str) -> bool:
        """True if no address of ``pool`` may be used, for whatever provider."""
        return all(each.disabled or not each.weight for each in self.pools[pool])

    def rerouted_pool(self, provider: str, pool: str) -> str:
        """The pool of mail to ``provider``: ``pool``, or what a rule says instead."""
        if not self.engine.reroutes:
            return pool
        found = self.engine.rerouted_pool(provider, pool, self.now_ms())
        return found if found in self.pools else pool  # a reload may have removed it

    def release(self, slot: WorkerSlot) -> None:
        """The worker gives up its permit."""
        permit = slot.permit
        if permit is not FREE:
            slot.permit = FREE
            self.store(self.end(permit, 0, 0))
            self.permits.release(permit)

    # ---- what replies have changed

    def apply(self, changes: Sequence[ShapingChange]) -> Applied:
        """Let the permits follow the controller; a pace that was lowered slows down the warm-up of its address."""
        for key in dict.fromkeys((each.provider, each.address) for each in changes if each.address):
            self.follow(key)
        at = {each.provider for each in changes if each.what == POOL}
        self.follow_reroutes({key: each for key, each in self.engine.reroutes.items() if key[0] in at})
        slowed: list[ShapingChange] = []
        warming: list[Warming] = []
        for change in changes:
            if change.is_raise or change.what == POOL:
                continue  # another pool leaves the pace of the address as it is
            time_ms = self.calendar_ms(change.time_ms)
            for each in self.warmup.of(change.address, change.provider):
                if each.depends_on(change.provider) and each.slow(time_ms):
                    warming.append(each)
                    slowed.append(slowed_warmup(change))
        self.let_try({each.provider for each in changes})
        return Applied([*changes, *slowed], warming)

    def let_try(self, providers: Collection[str]) -> None:
        """Paces or pools of ``providers`` have changed: what waits there tries again."""
        self.forget_caches()
        self.arm()
        for provider in providers:
            self.wait_lists.capacity_at_provider(provider)
            self.wait_lists.release_at(provider, self.now_ms())

    def follow(self, key: PathKey) -> None:
        """Allow on a path what the controller allows there, and note when its pace comes up."""
        pace = self.engine.controller.paces.get(key)
        self.permits.path(*key).ceiling.follow(pace)
        due_ms = self.engine.controller.due_ms(key)
        if due_ms is not None:
            heappush(self._steps, (due_ms, key))

    def follow_reroutes(self, reroutes: Mapping[RerouteKey, Reroute]) -> None:
        """Note when these end."""
        for (provider, _), reroute in reroutes.items():
            heappush(self._steps, (reroute.until_ms, (provider, "")))

    @property
    def step_due_ms(self) -> int | None:
        """When ``due_changes`` has some."""
        return self._steps[0][0] if self._steps else None

    def due_changes(self, now_ms: int) -> list[ShapingChange]:
        """The paces that come up now, and the reroutes whose time is over; to be applied."""
        changes = self.engine.end_reroutes(now_ms)
        while self._steps and self._steps[0][0] <= now_ms:
            _, key = heappop(self._steps)
            changes += self.engine.controller.advance(key, now_ms)
        return changes

    @property
    def due_ms(self) -> int | None:
        """When something is due: a step of a pace, or the end of what mail waits for."""
        due = [each for each in (self.wait_lists.due_ms, self.step_due_ms) if each is not None]
        return min(due, default=None)
