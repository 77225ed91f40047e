"""What the replies of providers change: the paces of the controller, and what the rules of shaping say.

Decisions are those of ``schedule.controller``. Here they become limits of the permits, events ``shaped``, and what is stored.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.shaping import ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core import clock
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import PathKey
from zonemta_py.egress.controller import PACE_VERSION, Controller, Pace, ShapingChange, slowed_warmup
from zonemta_py.egress.limits import Permits, Stored
from zonemta_py.egress.rules import POOL, ProviderReply, Reroute, RerouteKey, ShapingEngine
from zonemta_py.egress.warmup import DAY_MS, Warming, WarmUp, WarmupState
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.cleanup import row_slices
from zonemta_py.storage.interface import View

log = logging.getLogger(__name__)


# ---- What is stored of sending: uses of long windows, the paces of the controller, and the warm-up of addresses.
#
# Keys are in ``queue.format.keys``. Each is written in the batch that settles the message it is about, or with the event of
# the change.

PACE, WARMUP, POOL_STATE = "pace", "warmup", "pool"
Puts = list[tuple[bytes, bytes]]  # an empty value deletes

_use_key = lru_cache(4096)(keys.sending_key)  # the same ones for many messages
_read_pace = unpacker(Pace)
_read_warmup = unpacker(WarmupState)
_read_reroute = unpacker(Reroute)


class StoredEgress(NamedTuple):
    """What an earlier run stored; ``warmups`` by address and provider."""

    uses: Stored
    paces: dict[PathKey, Pace]
    warmups: dict[tuple[str, str], WarmupState]
    reroutes: dict[RerouteKey, Reroute]


def read_stored(view: View) -> StoredEgress:
    """Read it; what is damaged is logged, and is not used."""
    found = StoredEgress([], {}, {}, {})
    prefix = keys.META_SENDING
    for key, value in view.scan(prefix, keys.end_of(prefix)):
        kind, length_ms, slot, address, provider = keys.parse_sending(key)
        try:
            found.uses.append((kind, provider, address, length_ms, slot, int(value)))
        except ValueError as exc:
            log.critical("%r is not used: %s", key, exc)
    prefix = keys.META_SENDING_STATE
    for key, value in view.scan(prefix, keys.end_of(prefix)):
        kind, provider, address = keys.parse_sending_state(key)
        try:
            if kind == PACE:
                found.paces[provider, address] = _read_pace(value)
            elif kind == POOL_STATE:
                found.reroutes[provider, address] = _read_reroute(value)
            else:
                found.warmups[address, provider] = _read_warmup(value)
        except QueueCorrupt as exc:
            log.critical("%r is not used: %s", key, exc)
    return found


def use_puts(stored: Stored) -> Puts:
    """The uses of long windows."""
    return [
        (_use_key(kind, length_ms, slot, address, provider), b"%d" % used)
        for kind, provider, address, length_ms, slot, used in stored
    ]


def pace_put(key: PathKey, pace: Pace | None) -> tuple[bytes, bytes]:
    """The pace of an address at a provider."""
    return keys.sending_state_key(PACE, *key), b"" if pace is None else pack(
        pace._replace(version=PACE_VERSION)
    )


def reroute_put(key: RerouteKey, reroute: Reroute | None) -> tuple[bytes, bytes]:
    """From which pool the mail of another one leaves to a provider."""
    return keys.sending_state_key(POOL_STATE, *key), b"" if reroute is None else pack(reroute)


def warmup_put(warming: Warming) -> tuple[bytes, bytes]:
    """The state of a schedule."""
    address, provider = warming.key
    return keys.sending_state_key(WARMUP, provider, address), pack(warming.state)


async def delete_old(queue: Queue, now_ms: int) -> None:
    """Delete the uses that no longer count. Raises QueueUnavailable."""
    async for rows in row_slices(queue.store, keys.META_SENDING):
        batch = WriteBatch()
        for key, _ in rows:
            _, length_ms, slot, _, _ = keys.parse_sending(key)
            if not SlidingWindow(0, length_ms).counts(slot, now_ms):
                batch.put_latest([(key, b"")])
        if batch.latest:
            await queue.commits.submit(batch)


# ---- shaper

LAST_CLASSES = 5  # of refusals and deferrals, that are shown


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
