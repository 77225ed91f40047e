"""The port of ``egress`` in a simulation: a virtual clock, the mail of simulated zones, and recorded providers. Pure.

``SimulatedEgress`` is the ``SharedEgress`` of all zones of a scenario. Permits, wait lists, source addresses, controller, rules of
shaping and warm-up are those of the relay; here is what a prediction shows of them: which limit bound on which path.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zonemta_py.config.providers import ProviderSettings, ProviderTable
from zonemta_py.config.sending import ControllerSettings, PoolAddress
from zonemta_py.config.shaping import ShapingRule, ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core.model import Attempt
from zonemta_py.egress.controller import ShapingChange
from zonemta_py.egress.limits import Permit
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.rules import ProviderReply
from zonemta_py.egress.shared import Puts, SharedEgress
from zonemta_py.egress.sources import source_name
from zonemta_py.events.schema import Event
from zonemta_py.pipeline.simulate.mail import SimulatedMails, SimulatedSessions, VirtualClock
from zonemta_py.pipeline.simulate.prediction import PathLimits

DEFAULT_POOLS = {"default": (PoolAddress(),)}


@dataclass(frozen=True, slots=True)
class SendingSettings:
    """Settings of providers, shaping, warm-up and our addresses, from a configuration and its files; all of it is data."""

    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    rules: Sequence[ShapingRule] = ()
    schedules: Sequence[WarmupSchedule] = ()
    controller: ControllerSettings = ControllerSettings(enabled=False)
    pools: Mapping[str, Sequence[PoolAddress]] = field(default_factory=lambda: DEFAULT_POOLS)


class RecordedDomain(NamedTuple):
    """A domain as events know it: its provider when they were recorded (itself: none), and the hosts that were tried."""

    provider: str
    hosts: tuple[str, ...]


class _NothingSuspended:
    """No operator suspends anything in a simulation."""

    version = 0

    def __bool__(self) -> bool:
        return False

    def get(self, name: str) -> None:
        """No suspension: None for every name."""


NOTHING_SUSPENDED = _NothingSuspended()


class SimulatedEgress(SharedEgress):
    """One for all zones of a scenario. ``mails``: that of each zone."""

    def __init__(
        self, settings: SendingSettings, domains: Mapping[str, RecordedDomain], clock: VirtualClock
    ) -> None:
        self.mails = SimulatedMails()
        super().__init__(self.mails, NOTHING_SUSPENDED)
        self.clock = clock
        self.limits = PathLimits()
        self.sessions = SimulatedSessions(self.permits, clock)
        self.waiting: Counter[str] = Counter()  # destinations that wait for a provider
        self._domains = domains
        self._providers: dict[str, str] = {}
        self._armed_ms: int | None = None
        self._transactions = 0  # that have ended
        self.use(
            ProviderTable(settings.providers), settings.pools, settings.controller, ShapingRules(settings.rules)
        )  # fmt: skip
        self.warmup.configure(settings.schedules, {})

    # ---- the port

    def now_ms(self) -> int:
        """The time of the simulation in unix ms."""
        return self.clock.now_ms

    def provider(self, domain: str) -> str:
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

    def take(self, provider: str, entries: Sequence[PoolAddress], now_ms: int) -> Permit | Refusal:
        """A permit for one of ``entries``, or a refusal; the limit that bound each address is noted."""
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

    def classified(
        self, attempts: Sequence[Attempt | None], provider: str, sender: str
    ) -> Sequence[Attempt | None]:
        """``attempts`` as they are: the record names the classes."""
        return attempts

    def replied(
        self, replies: Sequence[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Let warm-ups and shaping follow ``replies``; there are no events and nothing to store."""
        # Parts of a message may end at the same time here: each counts.
        self._transactions += 1
        changes: list[ShapingChange] = []
        for reply in replies if self.warmup else ():
            for each in self.warmup.of(reply.address, reply.provider):
                each.tried(reply.provider, now_ms)
        for reply in dict.fromkeys(replies):
            changes += self.engine.reply(reply, str(self._transactions), now_ms)
        self._apply(changes)
        return [], []

    def _apply(self, changes: Sequence[ShapingChange]) -> None:
        if changes:
            for each in self.apply(changes).changes:
                self.limits.changed(each)

    # ---- time

    def arm(self) -> None:
        """Set a timer of the simulation for the next thing that is due, unless an earlier one is set."""
        due_ms = self.due_ms
        if due_ms is not None and (self._armed_ms is None or due_ms < self._armed_ms):
            self._armed_ms = due_ms
            self.clock.at_ms(due_ms, self._on_timer)

    def _on_timer(self) -> None:
        now_ms = self.clock.now_ms
        if self._armed_ms is None or self._armed_ms > now_ms:
            return  # an earlier timer has done it
        self._armed_ms = None
        self._apply(self.due_changes(now_ms))
        self.wait_lists.run_due(now_ms)
        self.arm()
