"""What the replies of providers change: the paces of the controller, and what the rules of shaping say.

Decisions are those of ``schedule.controller``. Here they become limits of the permits, events ``shaped``, and what is stored.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core import clock
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.egress_store import Puts, pace_put, reroute_put, warmup_put
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.queue import Queue
from zonemta_py.schedule.controller import Controller, Pace, ShapingChange, slowed_warmup
from zonemta_py.schedule.permits import Permits
from zonemta_py.schedule.shaping import POOL, ProviderReply, Reroute, RerouteKey, ShapingEngine
from zonemta_py.schedule.warmup import DAY_MS, WarmUp

LAST_CLASSES = 5  # of refusals and deferrals, that are shown

log = logging.getLogger(__name__)


class EgressFiles(NamedTuple):
    """What the files say that a configuration names."""

    table: ProviderTable
    schedules: Sequence[WarmupSchedule]
    rules: ShapingRules


class Shaper:
    """Applies what replies change. ``on_change`` is called with the providers to which other limits apply.

    Times are those of ``now_ms``; ``calendar_ms``: the unix time of the calendar then, whose days warm-up counts.
    """

    def __init__(
        self,
        queue: Queue,
        permits: Permits,
        warmup: WarmUp,
        now_ms: Callable[[], int],
        calendar_ms: Callable[[int], int],
        on_change: Callable[[Collection[str]], None],
    ) -> None:
        self._queue = queue
        self._permits = permits
        self._warmup = warmup
        self._now_ms = now_ms
        self._calendar_ms = calendar_ms
        self._on_change = on_change
        self.engine = ShapingEngine()
        self.last_classes: dict[PathKey, deque[str]] = {}
        # When paces come up and reroutes end, a heap; some are too early.
        self._steps: list[tuple[int, PathKey]] = []

    @property
    def controller(self) -> Controller:
        """The paces of addresses at providers."""
        return self.engine.controller

    def configure(
        self,
        settings: ControllerSettings,
        files: EgressFiles,
        pools: Mapping[str, Collection[str]],
    ) -> None:
        """Use other settings; paces stay until they have come up."""
        self.engine.configure(
            settings, files.rules, lambda name: files.table.settings(name).limits, pools
        )

    def go_on(self, paces: Mapping[PathKey, Pace], reroutes: Mapping[RerouteKey, Reroute]) -> None:
        """Go on with the paces of an earlier run, and with the pools that rules chose.

        What is to end later than any rule says is over: the clock was set back since.
        """
        now_ms = self._now_ms()
        latest_ms = now_ms + max(DAY_MS, self.engine.longest_ms)
        known = {key: _over(pace, latest_ms, now_ms) for key, pace in paces.items()}
        self.controller.paces |= known
        over = [key for key, each in reroutes.items() if each.until_ms > latest_ms]
        self.engine.reroutes |= reroutes
        for key in over:
            del self.engine.reroutes[key]
        puts = [reroute_put(key, None) for key in over]
        puts += [pace_put(key, pace) for key, pace in known.items() if pace != paces[key]]
        if puts:
            self.write([], puts)
        for key in paces:
            changes = self.controller.advance(key, now_ms)
            if changes:
                self.write(*self.apply(changes))
            else:
                self._follow(key)
        self._follow_reroutes(self.engine.reroutes)

    def forget_old(self, now_ms: int) -> None:
        """Drop what no longer counts."""
        self.engine.forget_old(now_ms)
        counted = {key for key, _, _ in self.controller.counts(now_ms)} | set(self.controller.paces)
        for key in [key for key in self.last_classes if key not in counted]:
            del self.last_classes[key]

    @property
    def due_ms(self) -> int | None:
        """When ``run_due`` has something to do."""
        return self._steps[0][0] if self._steps else None

    def run_due(self, now_ms: int) -> None:
        """Let paces come up by the steps that are due, and end the reroutes whose time is over."""
        changes = self.engine.end_reroutes(now_ms)
        while self._steps and self._steps[0][0] <= now_ms:
            _, key = heappop(self._steps)
            changes += self.controller.advance(key, now_ms)
        if changes:
            self.write(*self.apply(changes))

    def replies(
        self, replies: Iterable[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Replies to the recipients of ``message``: the events of what they change, and what is to be stored."""
        changes: list[ShapingChange] = []
        replies = list(replies)
        if self._warmup:
            for reply in replies:
                for each in self._warmup.of(reply.address, reply.provider):
                    each.tried(reply.provider, self._calendar_ms(now_ms))
        for reply in dict.fromkeys(replies):
            if reply.reply_class:
                self._remember(reply.path, reply.reply_class)
            changes += self.engine.reply(reply, message, now_ms)
        return self.apply(changes) if changes else ([], [])

    def _remember(self, key: PathKey, reply_class: str) -> None:
        known = self.last_classes.get(key)
        if known is None:
            known = self.last_classes[key] = deque(maxlen=LAST_CLASSES)
        known.append(reply_class)

    def apply(self, changes: Sequence[ShapingChange]) -> tuple[list[Event], Puts]:
        """Let the permits follow the controller, and its changes slow down the warm-up of their addresses."""
        puts: Puts = []
        reroutes = self.engine.reroutes
        if any(change.what == POOL for change in changes):
            over = [
                (each.provider, each.after) for each in changes if each.what == POOL and each.is_raise
            ]
            puts += [reroute_put(key, None) for key in over if key not in reroutes]
            at = {each.provider for each in changes if each.what == POOL}
            changed = {key: each for key, each in reroutes.items() if key[0] in at}
            puts += [reroute_put(key, each) for key, each in changed.items()]
            self._follow_reroutes(changed)
        events: list[Event] = [event_of(change) for change in changes]
        for key in dict.fromkeys(
            (change.provider, change.address) for change in changes if change.address
        ):
            self._follow(key)
            puts.append(pace_put(key, self.controller.paces.get(key)))
        for change in changes:
            _log(change)
            if change.is_raise or change.what == POOL:
                continue  # another pool leaves the pace of the address as it is
            time_ms = self._calendar_ms(change.time_ms)
            for each in self._warmup.of(change.address, change.provider):
                if each.depends_on(change.provider) and each.slow(time_ms):
                    puts.append(warmup_put(each))
                    slowed = slowed_warmup(change)
                    events.append(event_of(slowed))
                    _log(slowed)
        self._on_change({change.provider for change in changes})
        return events, puts

    def _follow(self, key: PathKey) -> None:
        pace, ceiling = self.controller.paces.get(key), self._permits.path(*key).ceiling
        ceiling.follow(pace)
        if pace is None:
            return
        due_ms = self.controller.due_ms(key)
        assert due_ms is not None
        heappush(self._steps, (due_ms, key))

    def _follow_reroutes(self, reroutes: Mapping[RerouteKey, Reroute]) -> None:
        for (provider, _), reroute in reroutes.items():
            heappush(self._steps, (reroute.until_ms, (provider, "")))

    def write(self, events: Iterable[Event], puts: Puts) -> None:
        """Record what has changed apart from the settle of a message."""
        batch = WriteBatch()
        batch.put_latest(puts)
        for event in events:
            batch.record(event)
        self._queue.commits.submit(batch)


def _over(pace: Pace, latest_ms: int, now_ms: int) -> Pace:
    """``pace`` with ``now_ms`` for each of its times that is later than ``latest_ms``."""
    changed_ms, paused_ms, kept_ms, lowered_ms = (
        now_ms if each > latest_ms else each
        for each in (pace.changed_ms, pace.paused_ms, pace.kept_ms, pace.lowered_ms)
    )
    return pace._replace(
        changed_ms=changed_ms, paused_ms=paused_ms, kept_ms=kept_ms, lowered_ms=lowered_ms
    )


def _log(change: ShapingChange) -> None:
    level = logging.INFO if change.is_raise else logging.WARNING
    after = clock.with_times(change.after)
    log.log(
        level,
        "%s from %s: %s: %s (%s)",
        change.provider,
        change.address,
        change.what,
        after,
        change.cause,
    )


def event_of(change: ShapingChange) -> Shaped:
    """The event of a change."""
    return Shaped(
        time_ms=change.time_ms, provider=change.provider, address=change.address, what=change.what,
        before=change.before, after=change.after, cause=change.cause,
    )  # fmt: skip
