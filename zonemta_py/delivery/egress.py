"""From which address mail leaves to which provider, and when: what the zones of a relay share, in the queue's process.

The decisions are those of ``schedule``: permits, gates, controller, warm-up. Here are the clock, the timer, what is stored
under ``meta/sending/``, and the events ``shaped``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.config.providers import ProviderTable, load_providers
from zonemta_py.config.schema import AddressLimits, Config, PoolAddress
from zonemta_py.config.warmup import WarmupSchedule, read_warmups
from zonemta_py.core import clock
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.errors import AgentLost, QueueCorrupt
from zonemta_py.core.model import Attempt
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import Suspension
from zonemta_py.schedule.constraint import Limit
from zonemta_py.schedule.controller import PAUSE, Change, Controller, Key, Pace, rate_of
from zonemta_py.schedule.gates import Gates
from zonemta_py.schedule.permits import FREE, Permit, Permits, Refusal
from zonemta_py.schedule.providers import Providers
from zonemta_py.schedule.rate_windows import UNKNOWN, RateWindows
from zonemta_py.schedule.sources import source_name
from zonemta_py.schedule.warmup import DAY_MS, WarmUp, WarmupState
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

LOOK_UPS_MAX = 100  # at the same time
SWEEP_EVERY_S = 600.0
OLD_MS = 32 * DAY_MS  # no window is longer
Puts = list[tuple[bytes, bytes]]

log = logging.getLogger(__name__)

_read_pace = unpacker(Pace)
_read_warmup = unpacker(WarmupState)


class EgressFiles(NamedTuple):
    """What the files say that a configuration names."""

    table: ProviderTable
    schedules: Sequence[WarmupSchedule]


def read_egress(config: Config) -> EgressFiles:
    """Read the files. Raises ConfigError."""
    table = load_providers(config.providers.file, shipped=config.providers.shipped)
    return EgressFiles(table, read_warmups(config.warmup.file) if config.warmup.file else ())


class Egress:
    """One for all zones of a queue."""

    def __init__(self, queue: Queue, config: Config) -> None:
        self.queue = queue
        self._epoch_ms = clock.now_ms() - round(clock.monotonic_s() * 1000)
        self.permits = Permits(self._on_room)
        self.gates = Gates(self._arm)
        self.providers = Providers(ProviderTable({}))
        self.controller = Controller()
        self.warmup = WarmUp()
        self.last_classes: dict[Key, deque[str]] = {}  # of refusals and deferrals
        self._steps: list[tuple[int, Key]] = []  # when paces come up, a heap
        self._free: dict[tuple[str, str], bool] = {}  # by pool and provider
        self._timer: asyncio.TimerHandle | None = None
        self._looking_up: dict[str, list[Callable[[], None]]] = {}
        self._look_ups: deque[tuple[str, Callable[[str], Awaitable[MxAnswer]]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._paces: dict[Key, Pace] = {}
        stored = self._read_states()
        self.configure(config, read_egress(config), stored)
        self._restore()

    def now_ms(self) -> int:
        """Unix ms of a clock that is never set: windows and steps must not jump."""
        return self._epoch_ms + round(clock.monotonic_s() * 1000)

    def configure(
        self, config: Config, files: EgressFiles, stored: dict[Key, WarmupState] | None = None
    ) -> None:
        """Use another configuration; what is under way, and what was used, counts on."""
        self.pools = config.pools
        self.tenant_pools = {
            name: each.pool for name, each in config.tenants.items() if each.pool is not None
        }
        addresses = {source_name(each): each.limits for pool in config.pools.values() for each in pool}
        self.addresses: dict[str, AddressLimits] = addresses
        self.providers.configure(files.table)
        self.permits.configure(lambda name: files.table.settings(name).limits, addresses)
        self.controller.configure(
            config.shaping.controller, lambda name: files.table.settings(name).limits
        )
        self.warmup.configure(files.schedules, stored or {})
        self.changed()

    def changed(self) -> None:
        """Something that limits has changed: find out again what is free, and let what waits try."""
        self._free.clear()
        for gate in self.gates.all():
            self.gates.room_at(gate.provider)

    # ---- what the zones ask

    def is_free(self, pool: str, provider: str) -> bool:
        """Whether nothing can refuse mail from ``pool`` to ``provider``."""
        free = self._free.get((pool, provider))
        if free is None:
            settings = self.providers.table.settings(provider)
            free = (
                settings.limits == NO_PROVIDER_LIMITS
                and settings.family == "both"
                and not any(self.is_limited(provider, entry) for entry in self.pools[pool])
            )
            if len(self._free) > FREE_MAX:
                self._free.clear()
            self._free[pool, provider] = free
        return free

    def is_limited(self, provider: str, entry: PoolAddress) -> bool:
        """Whether anything may refuse mail from the address ``entry`` to ``provider``."""
        name = source_name(entry)
        return bool(
            self.permits.is_limited(provider, name)
            or self.warmup.of(name, provider)
            or self.suspension("address", name)
        )

    def pool_of(self, provider: str, pool: str) -> str:
        """The pool of mail to ``provider`` that ``pool`` sends, unless a rule says otherwise."""
        return pool

    def suspension(self, kind: str, name: str) -> Suspension | None:
        """The suspension of a zone, provider, address or domain by an operator, if there is one now."""
        suspended = self.queue.suspended
        return suspended.get(f"{kind}:{name}") if suspended else None

    def stopped(self, *what: tuple[str, str]) -> tuple[str, Refusal] | None:
        """The first of ``what`` (kind, name) that an operator has suspended, and the refusal for it."""
        if not self.queue.suspended:
            return None
        for kind, name in what:
            found = self.suspension(kind, name)
            if found is not None:
                return f"{kind}:{name}", _suspended(kind, name, found)
        return None

    def refusal(
        self, provider: str, entry: PoolAddress, now_ms: int, *, session: bool = True
    ) -> Refusal | None:
        """What refuses a message from the address ``entry`` to ``provider`` now."""
        name = source_name(entry)
        found = self.suspension("address", name)
        if found is not None:
            return _suspended("address", name, found)
        if self.warmup and self.warmup.room(name, provider, now_ms) == 0:
            until_ms = (now_ms // DAY_MS + 1) * DAY_MS
            return Refusal(Limit.WARMUP, until_ms, f"{name} is new and has sent its number of the day")
        return self.permits.refusal(provider, name, now_ms, session=session)

    def take(self, provider: str, entries: Iterable[PoolAddress], now_ms: int) -> Permit | Refusal:
        """A permit for the first of ``entries`` that may be used, else why none may."""
        refusals: list[Refusal] = []
        for entry in entries:
            found = self.refusal(provider, entry, now_ms)
            permit = found or self.permits.take(provider, source_name(entry), now_ms)
            if isinstance(permit, Permit):
                self._count_warming(permit)
                return permit
            refusals.append(permit)
        if not refusals:
            return Refusal(Limit.NO_SOURCE, UNKNOWN, "every address of the pool is disabled")
        times = [each.until_ms for each in refusals if each.until_ms != UNKNOWN]
        return refusals[0]._replace(until_ms=min(times, default=UNKNOWN))

    def renew(self, permit: Permit, entry: PoolAddress, now_ms: int) -> Refusal | None:
        """Another message in the session of ``permit``, or what refuses it."""
        found = self.refusal(permit.provider, entry, now_ms, session=False)
        if found is None:
            found = self.permits.renew(permit, now_ms)
        if found is None:
            self._count_warming(permit)
        return found

    def _count_warming(self, permit: Permit) -> None:
        permit.recipients = 1
        permit.warming = self.warmup.of(permit.address, permit.provider) if self.warmup else ()
        for each in permit.warming:
            each.underway += 1

    def recipients_max(self, permit: Permit, wanted: int, now_ms: int) -> int:
        """How many recipients the message may have, at least one; they count for the schedules from now on."""
        for each in permit.warming:
            room = each.room(now_ms)
            if room is not None:
                wanted = min(wanted, permit.recipients + room)
        for each in permit.warming:
            each.underway += wanted - permit.recipients
        permit.recipients = wanted
        return wanted

    # ---- what the workers report

    def end(self, permit: Permit, sent: int, opened: int) -> Puts:
        """The message of ``permit`` has ended; ``sent``: its recipients that the peer saw. Returns what is to be stored."""
        if permit is FREE or not permit.granted:
            return []
        now_ms = self.now_ms()
        puts = [
            (keys.sending_key(kind, length_ms, slot, address, provider), str(used).encode())
            for kind, provider, address, length_ms, slot, used in self.permits.end(
                permit, now_ms, opened=opened
            )
        ]
        for each in permit.warming:
            each.underway -= permit.recipients
            if sent:
                each.count(sent, now_ms)
                puts.append(_warmup_put(each.key, each.state))
        permit.recipients, permit.warming = 0, ()
        return puts

    def attempts(
        self, provider: str, attempts: Iterable[Attempt], now_ms: int
    ) -> tuple[list[Event], Puts]:
        """Replies of ``provider``, one for each recipient: the events of what they change, and what is to be stored."""
        changes: list[Change] = []
        touched: set[Key] = set()
        for attempt in attempts:
            if not attempt.code:
                continue  # no server replied
            key = provider, attempt.source_ip or source_name(PoolAddress())
            if attempt.reply_class:
                self.last_classes.setdefault(key, deque(maxlen=5)).append(attempt.reply_class)
            found = self.controller.attempt(key, attempt.reply_class, now_ms)
            if found:
                changes += found
                touched.add(key)
        return self.apply(changes, touched) if changes else ([], [])

    def apply(self, changes: Sequence[Change], touched: Iterable[Key]) -> tuple[list[Event], Puts]:
        """Let the permits follow the controller, and its changes slow down the warm-up of their addresses."""
        puts: Puts = []
        events: list[Event] = [_event(change) for change in changes]
        for key in touched:
            self._follow(key)
            pace = self.controller.paces.get(key)
            puts.append((keys.sending_state_key("pace", *key), b"" if pace is None else pack(pace)))
        for change in changes:
            if change.what == PAUSE or change.cause.startswith("quiet"):
                continue
            for each in self.warmup.of(change.address, change.provider):
                if each.slow(change.time_ms):
                    puts.append(_warmup_put(each.key, each.state))
                    events.append(_slowed(change))
        self.changed()
        return events, puts

    def _follow(self, key: Key) -> None:
        pace, path = self.controller.paces.get(key), self.permits.path(*key)
        ceiling = path.ceiling
        if pace is None:
            ceiling.sessions = ceiling.messages = None
            ceiling.paused_ms, ceiling.reason = 0, ""
            return
        ceiling.sessions, ceiling.paused_ms, ceiling.reason = pace.sessions, pace.paused_ms, pace.cause
        if ceiling.messages is None:
            ceiling.messages = RateWindows(rate_of(pace))
        else:
            ceiling.messages.configure(rate_of(pace))
        due_ms = self.controller.due_ms(key)
        assert due_ms is not None
        heappush(self._steps, (due_ms, key))
        self._arm()

    def set_idle(self, way: Key, idle: int) -> None:
        """The number of sessions without a request has changed on a way from an address to a provider."""
        provider, source = way
        self.permits.path(provider, source or source_name(PoolAddress())).idle = idle

    # ---- providers

    def look_up(
        self, domain: str, resolve: Callable[[str], Awaitable[MxAnswer]], then: Callable[[], None]
    ) -> None:
        """Find the provider of ``domain``, then call ``then``."""
        waiting = self._looking_up.get(domain)
        if waiting is not None:
            waiting.append(then)
            return
        self._looking_up[domain] = [then]
        self._look_ups.append((domain, resolve))
        self._look_up_more()

    @property
    def look_ups(self) -> int:
        """How many domains are looked up, or wait for it."""
        return len(self._looking_up)

    def is_looked_up(self, domain: str) -> bool:
        """Whether the provider of ``domain`` is being found."""
        return domain in self._looking_up

    def _look_up_more(self) -> None:
        while self._look_ups and len(self._tasks) < LOOK_UPS_MAX and not self._closed:
            task = asyncio.get_running_loop().create_task(self._resolve(*self._look_ups.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._resolved)

    def _resolved(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._look_up_more()

    async def _resolve(self, domain: str, resolve: Callable[[str], Awaitable[MxAnswer]]) -> None:
        answer = NO_MX_ANSWER
        try:
            answer = await resolve(domain)
        except AgentLost as exc:
            log.warning("the provider of %s was not found: %s", domain, exc)
        except Exception:
            log.exception("the provider of %s was not found", domain)
        self.learn(domain, answer)
        for then in self._looking_up.pop(domain):
            then()

    def learn(self, domain: str, answer: MxAnswer) -> None:
        """The exchangers of ``domain`` were found."""
        self.providers.learn(domain, answer, clock.monotonic_s())

    # ---- time

    def _on_room(self, provider: str, address: str) -> None:
        self.gates.room_at(provider)
        if address in self.addresses and self.addresses[address] != NO_ADDRESS_LIMITS:
            self.gates.room_for_one()

    def _arm(self) -> None:
        due = [
            due_ms
            for due_ms in (self.gates.due_ms, self._steps[0][0] if self._steps else None)
            if due_ms
        ]
        if not due or self._closed:
            return
        delay_s = max(0.0, (min(due) - self.now_ms()) / 1000)
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        changes: list[Change] = []
        touched: set[Key] = set()
        while self._steps and self._steps[0][0] <= now_ms:
            _, key = heappop(self._steps)
            found = self.controller.advance(key, now_ms)
            changes += found
            touched |= {key} if found else set()
        if changes:
            self.write(*self.apply(changes, touched))
        self.gates.run_due(now_ms)
        self._arm()

    def write(self, events: Iterable[Event], puts: Puts) -> None:
        """Record what has changed apart from the settle of a message."""
        batch = WriteBatch()
        for key, value in puts:
            batch.put(key, value) if value else batch.delete(key)
        for event in events:
            batch.record(event)
        if batch.ops or batch.events:
            self.queue.commits.submit(batch)

    async def run(self) -> None:
        """Forget at times what counts no more."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now_ms = self.now_ms()
            self.controller.forget_idle(now_ms)
            self._delete_old(now_ms)

    def close(self) -> None:
        """No worker follows."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # ---- what survives

    def _read_states(self) -> dict[Key, WarmupState]:
        """Read the paces and the states of schedules of an earlier life."""
        found: dict[Key, WarmupState] = {}
        prefix = keys.META_SENDING_STATE
        for key, value in self.queue.store.scan(prefix, keys.end_of(prefix)):
            kind, first, second = keys.parse_sending_state(key)
            try:
                if kind == "pace":
                    self._paces[first, second] = _read_pace(value)
                else:
                    found[second, first] = _read_warmup(value)
            except QueueCorrupt as exc:
                log.critical("%r is not used: %s", key, exc)
        return found

    def _restore(self) -> None:
        """Count what an earlier life has sent, and go on with its paces."""
        now_ms = self.now_ms()
        prefix = keys.META_SENDING
        for key, value in self.queue.store.scan(prefix, keys.end_of(prefix)):
            kind, length_ms, slot, address, provider = keys.parse_sending(key)
            self.permits.restore([(kind, provider, address, length_ms, slot, int(value))], now_ms)
        self.controller.paces |= self._paces
        for way in self._paces:
            changes = self.controller.advance(way, now_ms)
            if changes:
                self.write(*self.apply(changes, [way]))
            else:
                self._follow(way)

    def _delete_old(self, now_ms: int) -> None:
        batch, prefix = WriteBatch(), keys.META_SENDING
        for key in self.queue.store.keys(prefix, keys.end_of(prefix)):
            _, length_ms, slot, _, _ = keys.parse_sending(key)
            if slot < now_ms // max(1, -(-length_ms // 60)) - 61:
                batch.delete(key)
        if batch.ops:
            self.queue.commits.submit(batch)


NO_PROVIDER_LIMITS = ProviderTable({}).settings("").limits
NO_ADDRESS_LIMITS = AddressLimits()
FREE_MAX = 100_000


def _suspended(kind: str, name: str, found: Suspension) -> Refusal:
    reason = f": {found.reason}" if found.reason else ""
    until_ms = found.until_ms or UNKNOWN
    return Refusal(Limit.OPERATOR, until_ms, f"{kind} {name} is suspended{reason}")


def _warmup_put(key: Key, state: WarmupState) -> tuple[bytes, bytes]:
    address, provider = key
    return keys.sending_state_key("warmup", provider, address), pack(state)


def _event(change: Change) -> Shaped:
    return Shaped(
        time_ms=change.time_ms, provider=change.provider, address=change.address, what=change.what,
        before=change.before, after=change.after, cause=change.cause,
    )  # fmt: skip


def _slowed(change: Change) -> Shaped:
    cause = f"its pace was lowered: {change.cause}"
    return Shaped(
        time_ms=change.time_ms, provider=change.provider, address=change.address, what="warmup",
        before="the next step tomorrow", after="the same step tomorrow", cause=cause,
    )  # fmt: skip
