"""The changes that shaping would have made of the replies in an event log, by other settings or by those of then. Pure.

The controller and the rules depend on nothing but settings, limits, and replies with their times. So with the settings of
then the changes are those that were recorded, as far as the log goes back: paces and counts of before its first event
are not known. The actions of an operator are repeated.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from zonemta_py.config.providers import SMARTHOST, ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ABOUT_SENDING, ShapingRules
from zonemta_py.egress.controller import FULL, PACE, PAUSE, ShapingChange
from zonemta_py.egress.rules import OPERATOR, POOL, ProviderReply, ShapingEngine, rule_cause
from zonemta_py.egress.sources import BY_SYSTEM
from zonemta_py.events.schema import boot_of

ATTEMPTS = ("delivered", "deferred", "bounced", "expired")
BY_REPLIES = (PACE, PAUSE, POOL)
SHAPED = "shaped"

Record = Mapping[str, Any]
PoolOf = Callable[[str, str], str]  # of a zone and a domain


class ShapingSetup(NamedTuple):
    """By what is decided. ``pools``: their addresses."""

    settings: ControllerSettings
    rules: ShapingRules
    limits_of: Callable[[str], ProviderLimits]
    pool_of: PoolOf
    pools: Mapping[str, Collection[str]]


class ReplayedChange(NamedTuple):
    """A change, recorded or computed."""

    time_ms: int
    provider: str
    address: str
    what: str
    before: str
    after: str
    cause: str

    def row(self) -> dict[str, Any]:
        """As its event has it."""
        row = self._asdict()
        return {
            "time_ms": row.pop("time_ms"), "provider": row.pop("provider"), "address": row.pop("address"),
            "what": row.pop("what"), "from": row.pop("before"), "to": row.pop("after"), **row,
        }  # fmt: skip


class RuleUse(NamedTuple):
    """The effects of a rule: ``replies`` of recipients on which it acted, and the ``changes`` of sending that it caused."""

    rule: str
    action: str
    replies: int
    changes: int


class _Node:
    """The state of one queue in the replay."""

    def __init__(self, setup: ShapingSetup) -> None:
        self._setup = setup
        self.last = (0, -1)  # seq and position of its newest record
        self.engine = self._make()

    def _make(self) -> ShapingEngine:
        engine = ShapingEngine()
        setup = self._setup
        engine.configure(setup.settings, setup.rules, setup.limits_of, setup.pools)
        return engine

    def is_new(self, record: Record) -> bool:
        """True if the record is not a repeat. What is counted in memory ends with the boot."""
        seq_position = int(record["seq"]), int(record["position"])
        if seq_position <= self.last:
            return False
        if self.last[0] and boot_of(seq_position[0]) != boot_of(self.last[0]):
            before, self.engine = self.engine, self._make()
            self.engine.controller.paces |= before.controller.paces
            self.engine.reroutes |= before.reroutes
        self.last = seq_position
        return True


LATE_MS = 2000


class ShapingReplay:
    """Takes the records of an event log in their order. ``changes`` are computed, ``recorded`` those of the log.

    What the rules say of a recipient (hold, bounce, its retries) is counted, and the records that follow are those of then.
    """

    def __init__(self, setup: ShapingSetup) -> None:
        self._setup = setup
        self._nodes: dict[str, _Node] = {}
        self._newest_ms = 0
        self.attempts = 0
        self.changes: list[ReplayedChange] = []
        self.recorded: list[ReplayedChange] = []
        self._acted = Counter[str]()  # replies by the name of the rule

    def add(self, record: Record) -> None:
        """The next record."""
        node = self._nodes.get(record["node"])
        if node is None:
            node = self._nodes[record["node"]] = _Node(self._setup)
        if not node.is_new(record):
            return
        event = record["event"]
        self._newest_ms = max(self._newest_ms, record["time_ms"])
        if event == SHAPED and record["what"] in BY_REPLIES:
            self._recorded(node.engine, record)
        elif event in ATTEMPTS and record.get("code"):
            self._replied(node.engine, record)

    def _replied(self, engine: ShapingEngine, record: Record) -> None:
        about = self._about(record)
        is_limited = about.provider != SMARTHOST
        for rule in engine.acting(about) if about.reply_class else ():
            self._acted[rule.name] += is_limited or rule.action not in ABOUT_SENDING
        if is_limited:
            self.attempts += 1
            self._keep(engine.reply(about, record["message"], record["time_ms"]))

    def _about(self, record: Record) -> ProviderReply:
        pool = self._setup.pool_of(record["zone"], record["domain"])
        return ProviderReply(
            provider=record.get("provider") or SMARTHOST, address=record.get("source_ip") or BY_SYSTEM, pool=pool,
            domain=record["domain"], reply_class=record.get("class", ""), code=record["code"], status=record["status"],
            text=record["reply"],
        )  # fmt: skip

    def _recorded(self, engine: ShapingEngine, record: Record) -> None:
        names = ("time_ms", "provider", "address", "what", "from", "to", "cause")
        change = ReplayedChange(*(record[name] for name in names))
        if change.cause != OPERATOR:
            self.recorded.append(change)
        elif change.what == POOL:
            engine.reroutes.pop((change.provider, change.after), None)
        elif change.after == FULL:
            self._keep(engine.controller.advance((change.provider, change.address), change.time_ms))
            engine.controller.end((change.provider, change.address), change.time_ms, OPERATOR)

    def end(self, now_ms: int | None = None) -> None:
        """Let the paces come up until the last record, or until ``now_ms``; no record follows.

        A step that was due just before the end may not have been recorded any more: those of the last LATE_MS count only
        as far as the log has changes.
        """
        last_ms = max((each.time_ms for each in self.recorded), default=0)
        until_ms = max(self._newest_ms - LATE_MS, last_ms) if now_ms is None else now_ms
        for node in self._nodes.values():
            self._keep(node.engine.end_reroutes(until_ms))
            for key in list(node.engine.controller.paces):
                self._keep(node.engine.controller.advance(key, until_ms))
        self.changes.sort()
        self.recorded.sort()

    def _keep(self, changes: Iterable[ShapingChange]) -> None:
        self.changes += [ReplayedChange(*change[:7]) for change in changes]

    def uses(self) -> list[RuleUse]:
        """Of each rule that acted on a reply, in their order."""
        causes = Counter(change.cause for change in self.changes)
        return [
            RuleUse(rule.name, rule.action, self._acted[rule.name], causes[rule_cause(rule)])
            for rule in self._setup.rules.rules
            if self._acted[rule.name]
        ]

    def differences(self) -> tuple[list[ReplayedChange], list[ReplayedChange]]:
        """The changes that were recorded and not computed, and those that were computed and not recorded."""
        computed, recorded = Counter(self.changes), Counter(self.recorded)
        return sorted((recorded - computed).elements()), sorted((computed - recorded).elements())
