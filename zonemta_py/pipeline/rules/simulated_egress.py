"""The limits that the zones of a simulated relay share: those of ``delivery.egress`` on a virtual clock. Pure.

Permits, gates, controller, rules of shaping and warm-up are the relay's own code.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.providers import NO_LIMITS, ProviderSettings, ProviderTable
from zonemta_py.config.sending import ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRule, ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core.model import PathKey
from zonemta_py.pipeline.rules.prediction import PathLimits
from zonemta_py.pipeline.rules.simulated_sessions import SimulatedSessions
from zonemta_py.pipeline.rules.virtual_clock import VirtualClock
from zonemta_py.schedule.allowance import Allowance
from zonemta_py.schedule.controller import ShapingChange, slowed_warmup
from zonemta_py.schedule.gates import Gates
from zonemta_py.schedule.paths import Refusal
from zonemta_py.schedule.permits import Permit
from zonemta_py.schedule.shaping import POOL, ProviderReply, ShapingEngine
from zonemta_py.schedule.sources import (
    common_families,
    limits_of_addresses,
    names_in_pools,
    source_name,
    usable,
)

DEFAULT_POOLS = {"default": (PoolAddress(),)}


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """What a configuration and its files say of providers, shaping, warm-up and our addresses; all of it is data."""

    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    rules: Sequence[ShapingRule] = ()
    schedules: Sequence[WarmupSchedule] = ()
    controller: ControllerSettings = ControllerSettings(enabled=False)
    pools: Mapping[str, Sequence[PoolAddress]] = field(default_factory=lambda: DEFAULT_POOLS)


class RecordedDomain(NamedTuple):
    """What events say of a domain: its provider when they were recorded (itself: none), and the hosts that were tried."""

    provider: str
    hosts: tuple[str, ...]


class SimulatedEgress(Allowance):
    """One for all zones of a scenario."""

    def __init__(
        self, settings: SendingSettings, domains: Mapping[str, RecordedDomain], clock: VirtualClock
    ) -> None:
        self.gates = Gates(self._arm)
        super().__init__(self.gates.capacity_on_path)
        self.clock = clock
        self.engine = ShapingEngine()
        self.table = ProviderTable(settings.providers)
        self.pools = settings.pools
        self.limits = PathLimits()
        self.sessions = SimulatedSessions(self.permits, clock)
        self.waiting: Counter[str] = Counter()  # destinations that wait for a provider
        self._domains = domains
        self._providers: dict[str, str] = {}
        self._free: dict[tuple[str, str], bool] = {}  # by pool and provider
        self._steps: list[tuple[int, PathKey]] = []  # when paces come up, a heap
        self.settled = 0  # how many transactions have ended
        self._armed_ms: int | None = None
        addresses = limits_of_addresses(settings.pools)
        self.permits.configure(lambda name: self.table.settings(name).limits, addresses)
        self.engine.configure(
            settings.controller, ShapingRules(settings.rules), lambda name: self.table.settings(name).limits,
            names_in_pools(settings.pools),
        )  # fmt: skip
        self.warmup.configure(settings.schedules, {})

    # ---- what the zones ask

    def provider_of(self, domain: str) -> str:
        """The provider of ``domain``: by the table if that knows the domain or its hosts, else the recorded one."""
        found = self._providers.get(domain)
        if found is None:
            found = self._providers[domain] = self._find(domain)
        return found

    def _find(self, domain: str) -> str:
        listed = self.table.of_domain(domain)
        recorded = self._domains.get(domain)
        if listed or recorded is None:
            return listed or domain
        by_hosts = self.table.of(domain, recorded.hosts)
        if by_hosts in self.table.providers:
            return by_hosts
        return by_hosts if recorded.provider == domain else recorded.provider

    def is_free(self, pool: str, provider: str) -> bool:
        """Whether nothing can refuse mail from ``pool`` to ``provider``."""
        free = self._free.get((pool, provider))
        if free is None:
            settings = self.table.settings(provider)
            free = self._free[pool, provider] = (
                settings.limits == NO_LIMITS
                and settings.family == "both"
                and not any(self.is_limited(provider, entry) for entry in self.pools[pool])
            )
        return free

    def rerouted_pool(self, provider: str, pool: str) -> str:
        """The pool of mail to ``provider``: ``pool``, or what a rule says instead."""
        return self.engine.rerouted_pool(provider, pool, self.clock.now_ms)

    def sources(self, provider: str, pool: str) -> list[PoolAddress]:
        """The addresses of ``pool`` that may be used with ``provider``."""
        families = common_families(self.table.settings(provider).family, "both")
        return usable(self.pools[pool], families)

    def take(self, provider: str, entries: Sequence[PoolAddress], now_ms: int) -> Permit | Refusal:
        """See ``Allowance``; which limit bound each address is noted."""
        now_s, found = self.clock.now_s, super().take(provider, entries, now_ms)
        if isinstance(found, Permit):
            self.limits.free((provider, found.address), now_s)
            return found
        for entry in entries:
            refused = self.refusal(provider, entry, now_ms)
            if refused is not None:
                self.limits.bind((provider, source_name(entry)), refused.limit.value, now_s)
        return found

    def waits(self, provider: str, number: int) -> None:
        """``number`` more destinations wait for ``provider``; negative: fewer."""
        self.waiting[provider] += number
        if not self.waiting[provider]:
            self.limits.free_provider(provider, self.clock.now_s)

    # ---- what replies change

    def reply(self, reply: ProviderReply, count: int) -> None:
        """``count`` recipients of the transaction that was ``settled`` last have got a reply."""
        for each in self.warmup.of(reply.address, reply.provider) if self.warmup else ():
            for _ in range(count):
                each.tried(reply.provider, self.clock.now_ms)
        if changes := self.engine.reply(reply, str(self.settled), self.clock.now_ms):
            self._apply(changes)

    def _apply(self, changes: Collection[ShapingChange]) -> None:
        """As ``delivery.shaper`` does: the permits follow, and a pace that was lowered slows down the warm-up."""
        for change in changes:
            self.limits.changed(change)
            if change.address:
                self._follow((change.provider, change.address))
            if change.what == POOL:
                for (provider, _), each in self.engine.reroutes.items():
                    if provider == change.provider:
                        self.clock.at_ms(each.until_ms, self._end_reroutes)
            if change.is_raise or change.what == POOL:
                continue
            for warming in self.warmup.of(change.address, change.provider):
                if warming.depends_on(change.provider) and warming.slow(change.time_ms):
                    self.limits.changed(slowed_warmup(change))
        self._free.clear()
        self._arm()
        for provider in {change.provider for change in changes}:
            self.gates.capacity_at_provider(provider)
            self.gates.release_at(provider, self.clock.now_ms)

    def _end_reroutes(self) -> None:
        if changes := self.engine.end_reroutes(self.clock.now_ms):
            self._apply(changes)

    def _follow(self, key: PathKey) -> None:
        self.permits.path(*key).ceiling.follow(self.engine.controller.paces.get(key))
        due_ms = self.engine.controller.due_ms(key)
        if due_ms is not None:
            heappush(self._steps, (due_ms, key))

    # ---- time

    def _arm(self) -> None:
        due = [self._steps[0][0]] if self._steps else []
        if self.gates.due_ms is not None:
            due.append(self.gates.due_ms)
        if due and (self._armed_ms is None or min(due) < self._armed_ms):
            self._armed_ms = min(due)
            self.clock.at_ms(self._armed_ms, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self.clock.now_ms
        if self._armed_ms is None or self._armed_ms > now_ms:
            return  # an earlier timer has done it
        self._armed_ms = None
        changes: list[ShapingChange] = []
        while self._steps and self._steps[0][0] <= now_ms:
            _, key = heappop(self._steps)
            changes += self.engine.controller.advance(key, now_ms)
        if changes:
            self._apply(changes)
        self.gates.run_due(now_ms)
        self._arm()
