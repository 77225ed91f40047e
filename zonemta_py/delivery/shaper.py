"""The changes by replies, as they are recorded: events ``shaped``, and what must survive a restart, under ``meta/sending/``.

The decisions are those of ``egress``: its engine says what changes, ``SharedEgress.apply`` lets the limits follow. ``Shaper`` makes of
it events and puts, for the batch that settles the message with the reply (``replies``), or for one of its own (``run_due``,
``restore``). Uses of long windows, paces, reroutes and the states of warm-up are stored, each with its change.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable
from zonemta_py.config.shaping import ShapingRules
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.core import clock
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.core.model import PathKey
from zonemta_py.egress.controller import PACE_VERSION, Controller, Pace, ShapingChange
from zonemta_py.egress.limits import Stored
from zonemta_py.egress.rules import POOL, ProviderReply, Reroute, RerouteKey
from zonemta_py.egress.shared import Puts, SharedEgress
from zonemta_py.egress.warmup import DAY_MS, Warming, WarmupState
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.cleanup import row_slices
from zonemta_py.storage.interface import View

log = logging.getLogger(__name__)


# ---- what is stored; keys are in ``queue.format.keys``

PACE, WARMUP, POOL_STATE = "pace", "warmup", "pool"

_use_key = lru_cache(4096)(keys.sending_key)  # the same ones for many messages
_read_pace = unpacker(Pace)
_read_warmup = unpacker(WarmupState)
_read_reroute = unpacker(Reroute)


class StoredEgress(NamedTuple):
    """The state that an earlier run stored; ``warmups`` by address and provider."""

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
    """The key and value of a reroute: the pool from which the mail of another one leaves to a provider."""
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


# ---- what replies change

LAST_CLASSES = 5  # of refusals and deferrals, that are shown


class EgressFiles(NamedTuple):
    """The contents of the files that a configuration names."""

    table: ProviderTable
    schedules: Sequence[WarmupSchedule]
    rules: ShapingRules


class Shaper:
    """Records what replies change; what that is, and to which limits it leads, ``egress`` says."""

    def __init__(self, queue: Queue, egress: SharedEgress) -> None:
        self._queue = queue
        self._egress = egress
        self.engine = egress.engine
        self.last_classes: dict[PathKey, deque[str]] = {}

    @property
    def controller(self) -> Controller:
        """The paces of addresses at providers."""
        return self.engine.controller

    def restore(self, paces: Mapping[PathKey, Pace], reroutes: Mapping[RerouteKey, Reroute]) -> None:
        """Use the paces of an earlier run, and the pools that rules chose.

        What is to end later than any rule says is over: the clock was set back since.
        """
        now_ms = self._egress.now_ms()
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
                self._egress.follow(key)
        self._egress.follow_reroutes(self.engine.reroutes)

    def forget_old(self, now_ms: int) -> None:
        """Drop what no longer counts."""
        self.engine.forget_old(now_ms)
        counted = {key for key, _, _ in self.controller.counts(now_ms)} | set(self.controller.paces)
        for key in [key for key in self.last_classes if key not in counted]:
            del self.last_classes[key]

    def run_due(self, now_ms: int) -> None:
        """Let paces come up by the steps that are due, and end the reroutes whose time is over."""
        changes = self._egress.due_changes(now_ms)
        if changes:
            self.write(*self.apply(changes))

    def replies(
        self, replies: Iterable[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Replies to the recipients of ``message``: the events of what they change, and what is to be stored."""
        changes: list[ShapingChange] = []
        replies = list(replies)
        warmup = self._egress.warmup
        if warmup:
            for reply in replies:
                for each in warmup.of(reply.address, reply.provider):
                    each.tried(reply.provider, self._egress.calendar_ms(now_ms))
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
        """Let the limits follow ``changes``: the events, and what is to be stored."""
        applied, reroutes = self._egress.apply(changes), self.engine.reroutes
        puts: Puts = []
        at = {each.provider for each in changes if each.what == POOL}
        if at:
            over = [
                (each.provider, each.after) for each in changes if each.what == POOL and each.is_raise
            ]
            puts += [reroute_put(key, None) for key in over if key not in reroutes]
            puts += [reroute_put(key, each) for key, each in reroutes.items() if key[0] in at]
        paths = dict.fromkeys((each.provider, each.address) for each in changes if each.address)
        puts += [pace_put(key, self.controller.paces.get(key)) for key in paths]
        puts += map(warmup_put, applied.warming)
        for change in applied.changes:
            _log(change)
        return [event_of(change) for change in applied.changes], puts

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
    return Shaped(
        time_ms=change.time_ms, provider=change.provider, address=change.address, what=change.what,
        before=change.before, after=change.after, cause=change.cause,
    )  # fmt: skip
