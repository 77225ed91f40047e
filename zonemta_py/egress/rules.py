"""The changes that replies cause, by the rules of shaping and by the controller. Pure; times are ms.

A rule that a reply matches acts at once, or when its threshold is reached in a sliding window, counted for each provider
and address. What it changes of a recipient is in ``RecipientAction``; what it changes of sending is a ``ShapingChange``.

State: the paces of the controller, the counts of rules with a threshold, and reroutes. A reroute of a provider and a pool: none ─
a rule acts ─▶ mail leaves from another pool ─ its time is over, or an operator ends it ─▶ none.

Invariants:

- The same settings, rules and replies, with their messages and times and in their order, give the same changes: the event log can
  be replayed.
- A reply that several recipients of a message have at once counts once (decision 124).
- Of each kind of rule about the recipient the first acts. The controller does not count a reply that a rule ignores, and rules
  about sending that follow that rule do not act on it.
- A rule that has reached its threshold counts again from the beginning.
- Mail is not rerouted twice: a pool to which mail of the provider was moved stays where it is.

Callers: ``Shaper`` of a relay calls ``reply`` with each reply, ``MessageEgress`` asks ``action``; ``egress.replay`` and
``pipeline.simulate`` ask the same engine. ``SharedEgress.apply`` carries out what has changed.

Example: a rule suspends a path at 3 replies in 60 s. The third within a minute pauses it, and the count begins again.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ABOUT_SENDING, ShapingRule, ShapingRules
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.core.model import PathKey
from zonemta_py.egress.controller import MINUTE_S, Controller, ShapingChange

POOL = "pool"
IGNORE = "ignore"
ENDS = ("bounce", "hold")  # the attempts of a recipient; the first of either acts
OPERATOR = "an operator"  # the cause of what an operator changes
OVER = "its time is over"  # the cause of the end of a reroute


class ProviderReply(NamedTuple):
    """A reply: of which provider, to mail from which address of which pool, for which domain."""

    provider: str
    address: str
    pool: str
    domain: str
    reply_class: str
    code: int
    status: str
    text: str

    @property
    def path(self) -> PathKey:
        """The path at which the controller counts it."""
        return self.provider, self.address


class RecipientAction(NamedTuple):
    """The effects of rules on the recipient that a reply is about: the first rule of each kind counts.

    ``delays_s``: the retry ladder of its own. ``defers``: a permanent refusal is tried again. ``rule``: the name of that
    which holds or bounces it.
    """

    delays_s: tuple[float, ...] = ()
    is_counted: bool = True
    defers: bool = False
    bounces: bool = False
    holds: bool = False
    rule: str = ""


USUAL = RecipientAction()
RerouteKey = tuple[str, str]  # provider, and the pool from which mail leaves usually


class Reroute(NamedTuple):
    """Mail leaves from another pool until a time, as stored."""

    version: int
    pool: str
    until_ms: int


def rule_cause(rule: ShapingRule) -> str:
    """The cause of what a rule changes."""
    return f"rule {rule.name}"


class ShapingEngine:
    """The rules, the controller, and where mail leaves from another pool."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.reroutes: dict[RerouteKey, Reroute] = {}
        self._rules = ShapingRules(())
        self._pools: Mapping[str, Collection[str]] = {}
        # By rule, its period, provider and address.
        self._counts: dict[tuple[str, float, str, str], SlidingWindow] = {}
        # Of which message, settled when, what is counted already.
        self._settled, self._counted = ("", 0), set[ProviderReply]()

    def configure(
        self,
        settings: ControllerSettings,
        rules: ShapingRules,
        limits_of: Callable[[str], ProviderLimits],
        pools: Mapping[str, Collection[str]],
    ) -> None:
        """Use other settings and rules; what is counted for a rule that stays continues to count. ``pools``: their addresses."""
        self._pools = pools
        self.controller.configure(settings, limits_of)
        self._rules = rules
        periods = {(rule.name, rule.threshold_s) for rule in rules.rules}
        self._counts = {key: count for key, count in self._counts.items() if key[:2] in periods}

    @property
    def longest_ms(self) -> int:
        """For how long a rule acts, at most."""
        return round(max((rule.for_s for rule in self._rules.rules), default=0.0) * 1000)

    def rerouted_pool(self, provider: str, pool: str, now_ms: int) -> str:
        """The pool that mail from ``pool`` to ``provider`` leaves from now."""
        found = self.reroutes.get((provider, pool))
        return pool if found is None or found.until_ms <= now_ms else found.pool

    def action(self, reply: ProviderReply) -> RecipientAction:
        """The action on the recipient that the rules say."""
        found = USUAL
        for rule in self.acting(reply):
            if rule.action == "retry":
                found = found._replace(delays_s=rule.delays_s)
            elif rule.action == "not_counted":
                found = found._replace(is_counted=False)
            elif rule.action == "defer":
                found = found._replace(defers=True)
            elif rule.action in ENDS:
                found = found._replace(
                    bounces=rule.action == "bounce", holds=rule.action == "hold", rule=rule.name
                )
        return found

    def acting(self, reply: ProviderReply) -> list[ShapingRule]:
        """The rules that act on the reply, in their order: of each kind about the recipient the first.

        Those about sending that follow one that ignores the reply do not; those before it were written for such replies.
        """
        acting: list[ShapingRule] = []
        for rule in self._matching(reply):
            is_sending = rule.action in ABOUT_SENDING
            kinds = (IGNORE,) if is_sending else ENDS if rule.action in ENDS else (rule.action,)
            if not any(each.action in kinds for each in acting):
                acting.append(rule)
        return acting

    def _matching(self, reply: ProviderReply) -> list[ShapingRule]:
        if not reply.reply_class:
            return []
        return self._rules.matching(
            reply.provider, reply.reply_class, reply.code, reply.status, reply.text, reply.domain
        )

    def reply(self, reply: ProviderReply, message: str, now_ms: int) -> list[ShapingChange]:
        """A recipient of ``message`` has its reply; ``reply_class`` is empty if it was accepted. Returns what changed.

        A reply that several recipients have at once counts once: it was about the message, or the session (decision 124).
        """
        if self._settled != (message, now_ms):
            self._settled, self._counted = (message, now_ms), set()
        if reply in self._counted:
            return []
        self._counted.add(reply)
        changes = self.end_reroutes(now_ms) if self.reroutes else []
        rules = self.acting(reply)
        if any(rule.action == IGNORE for rule in rules):
            changes += self.controller.advance(reply.path, now_ms)
        else:
            changes += self.controller.attempt(reply.path, reply.reply_class, now_ms, code=reply.code)
        for rule in rules:
            if rule.action in ABOUT_SENDING and self._reaches_threshold(rule, reply.path, now_ms):
                change = self._act(rule, reply, now_ms)
                changes += [change] if change is not None else []
        return changes

    def _reaches_threshold(self, rule: ShapingRule, key: PathKey, now_ms: int) -> bool:
        if rule.threshold_count <= 1:
            return True
        counted = (rule.name, rule.threshold_s, *key)
        count = self._counts.get(counted)
        if count is None:
            count = SlidingWindow(rule.threshold_count, round(rule.threshold_s * 1000))
            self._counts[counted] = count
        count.add(now_ms, 1)
        if count.used(now_ms) < rule.threshold_count:
            return False
        del self._counts[counted]  # the next time it takes as many again
        return True

    def _act(self, rule: ShapingRule, reply: ProviderReply, now_ms: int) -> ShapingChange | None:
        until_ms, cause = now_ms + round(rule.for_s * 1000), rule_cause(rule)
        if rule.action == "suspend":
            return self.controller.pause(reply.path, until_ms, now_ms, cause)
        if rule.action == "pool":
            return self._reroute(rule, reply, until_ms, now_ms)
        pace, to = self.controller.top(reply.path, now_ms), rule.to
        assert to is not None
        if rule.action == "lower_sessions":
            sessions = to.sessions if to.percent is None else pace.top_sessions * to.percent // 100
            return self.controller.lower(reply.path, until_ms, now_ms, (sessions, None, cause))
        if to.rate is not None:
            rate = round(to.rate.events / to.rate.per_s * MINUTE_S)
        else:
            assert to.percent is not None
            rate = pace.top_rate * to.percent // 100
        return self.controller.lower(reply.path, until_ms, now_ms, (None, rate, cause))

    def _reroute(
        self, rule: ShapingRule, reply: ProviderReply, until_ms: int, now_ms: int
    ) -> ShapingChange | None:
        assert rule.pool is not None
        moved_to = {each.pool for (name, _), each in self.reroutes.items() if name == reply.provider}
        if rule.pool == reply.pool or reply.pool in moved_to:
            return None  # it is that pool already
        before = self.rerouted_pool(reply.provider, reply.pool, now_ms)
        if before == rule.pool:
            return None  # after its time the own pool is tried again
        of_zone = {*self._pools.get(reply.pool, ()), *self._pools.get(before, ())}
        if of_zone and reply.address not in of_zone:
            # An address of a tenant's pool, or of the fallback pool: the mail of others stays where it is.
            return None
        self.reroutes[reply.provider, reply.pool] = Reroute(1, rule.pool, until_ms)
        after = f"{rule.pool} until {until_ms}"
        return ShapingChange(
            time_ms=now_ms, provider=reply.provider, address=reply.address, what=POOL, before=before, after=after,
            cause=rule_cause(rule),
        )  # fmt: skip

    def end_reroutes(self, now_ms: int) -> list[ShapingChange]:
        """Forget the reroutes whose time is over; returns these changes, at the time of each."""
        over = [(key, each) for key, each in self.reroutes.items() if each.until_ms <= now_ms]
        for key, _ in over:
            del self.reroutes[key]
        return [
            ShapingChange(
                time_ms=each.until_ms, provider=provider, address="", what=POOL, before=each.pool, after=pool, cause=OVER,
                is_raise=True,
            )
            for (provider, pool), each in over
        ]  # fmt: skip

    def forget_old(self, now_ms: int) -> None:
        """Drop what no longer counts."""
        self.controller.forget_idle(now_ms)
        self._counts = {key: count for key, count in self._counts.items() if count.used(now_ms)}
