"""From which address mail leaves to which provider, and when: what the zones of a relay share, in the queue's process.

The decisions are those of ``schedule``: permits, wait lists, controller, warm-up. Here are the clock, the timer, what is stored
under ``meta/sending/``, and the events ``shaped``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from zonemta_py.config.providers import NO_LIMITS, ProviderTable, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.shaping import check_pools, check_rule_providers, load_shaping
from zonemta_py.config.warmup import check_warmups, read_warmups
from zonemta_py.core import clock
from zonemta_py.core.errors import AgentLost, ConfigError
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.shaper import (
    EgressFiles,
    Puts,
    Shaper,
    delete_old,
    read_stored,
    use_puts,
    warmup_put,
)
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import FREE, Allowance, Permit
from zonemta_py.egress.paths import UNTIL_EVENT, Limit, Refusal
from zonemta_py.egress.providers import Providers
from zonemta_py.egress.sources import limits_of_addresses, names_in_pools, source_name, usable
from zonemta_py.egress.waiting import WaitLists
from zonemta_py.egress.warmup import WarmupState
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import Suspension
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

log = logging.getLogger(__name__)


# ---- Finds the MX hosts of domains before their first delivery, a limited number at a time.
#
# A look-up is *quick* in its first second: most have their answer then, from a name server that answers. LOOK_UPS_MAX
# are quick at a time, so the resolver is not flooded. One that takes longer waits for a name server that may not
# answer at all; it gives its place to the next one, and counts among SLOW_MAX. Of the domains that wait, the newest and the
# oldest are looked up in turn: mail that has just come does not wait behind thousands of dead domains, and those are reached.
# Called by the egress of each zone for the first mail of a domain, and again when its answer has ended.

LOOK_UPS_MAX = 100  # at the same time, that are quick
QUICK_S = 1.0
SLOW_MAX = 2000  # each has a socket's place in c-ares and a task, about 5 KB

Resolve = Callable[[str], Awaitable[MxAnswer]]


class LookUps:
    """``learn`` is called with each domain and its MX hosts; none if they cannot be found now."""

    def __init__(self, learn: Callable[[str, MxAnswer], None], quick_s: float = QUICK_S) -> None:
        self._learn = learn
        self._quick_s = quick_s
        self._then: dict[str, list[Callable[[], None]]] = {}
        self._waiting: deque[tuple[str, Resolve]] = deque()
        self._takes_newest = True
        self._quick: dict[asyncio.Task[None], asyncio.TimerHandle] = {}
        self._slow: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._then)

    def __contains__(self, domain: object) -> bool:
        return domain in self._then

    def add(self, domain: str, resolve: Resolve, then: Callable[[], None]) -> None:
        """Look up ``domain``, once for all that ask, and call ``then``."""
        asked = self._then.get(domain)
        if asked is not None:
            asked.append(then)
            return
        self._then[domain] = [then]
        self._waiting.append((domain, resolve))
        self._start_more()

    def _start_more(self) -> None:
        while self._waiting and len(self._quick) < LOOK_UPS_MAX and not self._closed:
            domain, resolve = self._waiting.pop() if self._takes_newest else self._waiting.popleft()
            self._takes_newest = not self._takes_newest
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._look_up(domain, resolve))
            self._quick[task] = loop.call_later(self._quick_s, self._is_slow, task)
            task.add_done_callback(self._ended)

    def _is_slow(self, task: "asyncio.Task[None]") -> None:
        if len(self._slow) < SLOW_MAX:
            del self._quick[task]
            self._slow.add(task)
            self._start_more()
        else:
            loop = asyncio.get_running_loop()
            self._quick[task] = loop.call_later(self._quick_s, self._is_slow, task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        timer = self._quick.pop(task, None)
        if timer is not None:
            timer.cancel()
        self._slow.discard(task)
        self._start_more()

    async def _look_up(self, domain: str, resolve: Resolve) -> None:
        answer = NO_MX_ANSWER
        try:
            answer = await resolve(domain)
        except AgentLost as exc:
            log.warning("the MX hosts of %s were not found: %s", domain, exc)
        except Exception:
            log.exception("the MX hosts of %s were not found", domain)
        calls: list[Callable[[], None]] = [partial(self._learn, domain, answer), *self._then.pop(domain)]
        for call in calls:
            try:
                call()
            except Exception:  # a defect of one zone must not keep the mail of the others
                log.exception("a zone could not use the MX hosts of %s", domain)

    def close(self) -> None:
        """Nothing follows."""
        self._closed = True
        for task in (*self._quick, *self._slow):
            task.cancel()


# ---- egress


def read_egress(config: Config) -> EgressFiles:
    """Read the files. Raises ConfigError that begins with the key of the file."""
    with _named_file("providers.file"):
        table = load_providers(config.providers.file, shipped=config.providers.shipped)
    with _named_file("shaping.file"):
        rules = load_shaping(config.shaping.file, shipped=config.shaping.shipped)
        check_pools(rules, list(config.pools))
        check_rule_providers(rules, table)
    with _named_file("warmup.file"):
        schedules = read_warmups(config.warmup.file) if config.warmup.file else []
        check_warmups(schedules, _addresses(config), table)
    return EgressFiles(table, schedules, rules)


def _addresses(config: Config) -> set[str]:
    return {source_name(each) for pool in config.pools.values() for each in pool}


@contextmanager
def _named_file(key: str) -> Iterator[None]:
    """A ConfigError gets ``key`` in front."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{key}: {exc}") from exc


FREE_MAX = 100_000
CLOCK_SET_MS = 1000
SUSPENDED_MIN_MS = 1000  # before mail tries again whether a suspension has ended


class Egress(Allowance):
    """One for all zones of a queue."""

    def __init__(self, queue: Queue, config: Config) -> None:
        self.wait_lists = WaitLists(self._arm)
        super().__init__(self.wait_lists.capacity_on_path)
        self.queue = queue
        self._epoch_ms = clock.now_ms() - round(clock.monotonic_s() * 1000)
        self._ahead_ms = 0  # by how much the clock was set since
        self.providers = Providers(ProviderTable({}))
        self._free: dict[tuple[str, str], bool] = {}  # by pool and provider
        self._sources: dict[tuple[str, tuple[str, ...]], list[PoolAddress]] = {}  # by pool and families
        self._suspensions = 0  # the version that ``_free`` is about
        self._timer: asyncio.TimerHandle | None = None
        self.look_ups = LookUps(self.learn)
        self.shaper = Shaper(
            queue, self.permits, self.warmup, self.now_ms, self.calendar_ms, self._shaped
        )
        self._closed = False
        stored = read_stored(queue.store)
        self.configure(config, read_egress(config), stored.warmups)
        self.permits.restore(stored.uses, self.now_ms())
        self.shaper.go_on(stored.paces, stored.reroutes)
        self._arm()

    def now_ms(self) -> int:
        """Unix ms of a clock that is never set: windows and steps must not jump."""
        return self._epoch_ms + round(clock.monotonic_s() * 1000)

    def calendar_ms(self, now_ms: int) -> int:
        """See ``Allowance``: the clock may have been set since the start, which ``forget_old`` notices."""
        return now_ms + self._ahead_ms

    def steady_ms(self, calendar_ms: int) -> int:
        """The time of the clock that is never set at ``calendar_ms`` (unix ms), which was a moment ago."""
        return calendar_ms - self._ahead_ms

    def configure(
        self,
        config: Config,
        files: EgressFiles,
        stored: dict[tuple[str, str], WarmupState] | None = None,
    ) -> None:
        """Use another configuration; what is under way, and what was used, continues to count."""
        self.files = files
        self.pools = config.pools
        self._sources.clear()
        addresses = limits_of_addresses(config.pools)
        self.providers.configure(files.table)
        self.permits.configure(lambda name: files.table.settings(name).limits, addresses)
        self.shaper.configure(config.shaping.controller, files, names_in_pools(config.pools))
        self.warmup.configure(files.schedules, stored or {})
        self.warmup.not_after(self.calendar_ms(self.now_ms()))
        self.changed()

    def changed(self) -> None:
        """Something that limits has changed: find out again what is free, and let what waits try."""
        self._free.clear()
        self._arm()
        for wait_list in self.wait_lists.all():
            if not wait_list.key.cause:
                self.wait_lists.capacity_at_provider(wait_list.provider)
                continue
            kind, _, name = wait_list.key.cause.partition(":")
            stopped = self.stopped((kind, name))
            if stopped is not None:
                self.wait_lists.put_off(wait_list, stopped[1])
            else:
                self.wait_lists.release(wait_list, self.now_ms())

    def _shaped(self, providers: Collection[str]) -> None:
        """Paces or pools of ``providers`` have changed."""
        self._free.clear()
        self._arm()
        for provider in providers:
            self.wait_lists.capacity_at_provider(provider)
            self.wait_lists.release_at(provider, self.now_ms())

    # ---- what the zones ask

    def is_free(self, pool: str, provider: str) -> bool:
        """Whether nothing can refuse mail from ``pool`` to ``provider``."""
        if self._suspensions != self.queue.suspended.version:
            self._suspensions = self.queue.suspended.version
            self._free.clear()
        free = self._free.get((pool, provider))
        if free is None:
            settings = self.providers.table.settings(provider)
            free = (
                not self.is_disabled(pool)
                and settings.limits == NO_LIMITS
                and settings.family == "both"
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
        """Whether no address of ``pool`` may be used, for whatever provider."""
        return all(each.disabled or not each.weight for each in self.pools[pool])

    def rerouted_pool(self, provider: str, pool: str) -> str:
        """The pool of mail to ``provider``: ``pool``, or what a rule says instead."""
        reroutes = self.shaper.engine.reroutes
        if not reroutes:
            return pool
        found = self.shaper.engine.rerouted_pool(provider, pool, self.now_ms())
        return found if found in self.pools else pool  # a reload may have removed it

    def suspension(self, kind: str, name: str) -> Suspension | None:
        """The suspension of a zone, provider, address or domain by an operator, if there is one now."""
        suspended = self.queue.suspended
        return suspended.get(f"{kind}:{name}") if suspended else None

    def stopped_address(self, name: str) -> Refusal | None:
        """See ``Allowance``."""
        if not self.queue.suspended:
            return None
        found = self.suspension("address", name)
        return None if found is None else self._suspended("address", name, found)

    def stopped(self, *what: tuple[str, str]) -> tuple[str, Refusal] | None:
        """The first of ``what`` (kind, name) that an operator has suspended, and the refusal for it."""
        if not self.queue.suspended:
            return None
        for kind, name in what:
            found = self.suspension(kind, name)
            if found is not None:
                return f"{kind}:{name}", self._suspended(kind, name, found)
        return None

    def _suspended(self, kind: str, name: str, found: Suspension) -> Refusal:
        reason = f": {found.reason}" if found.reason else ""
        until_ms = UNTIL_EVENT
        if found.until_ms:  # of the calendar; the clock may have been set back a moment ago
            until_ms = max(self.steady_ms(found.until_ms), self.now_ms() + SUSPENDED_MIN_MS)
        return Refusal(Limit.OPERATOR, until_ms, f"{kind} {name} is suspended{reason}")

    def unused_state(self) -> Iterator[str]:
        """A warning for each suspension and pace of a provider that the table no longer has: it concerns no mail."""
        table = self.providers.table
        suspended = (name.partition(":") for name in self.queue.suspended.names())
        found = {("suspension", name) for kind, _, name in suspended if kind == "provider"}
        found |= {("pace", provider) for provider, _ in self.shaper.controller.paces}
        for what, provider in sorted(found):
            if problem := table.problem_of(provider):
                yield f"the {what} of the provider '{provider}' concerns no mail: {problem}"

    # ---- what the workers report

    def end(self, permit: Permit, sent: int, opened: int) -> Puts:
        """The message of ``permit`` has ended; ``sent``: its recipients that the peer saw. Returns what is to be stored."""
        if permit is FREE or not permit.granted:
            return []
        stored, warming = self.finish(permit, sent, opened, self.now_ms())
        return use_puts(stored) + [warmup_put(each) for each in warming]

    def release(self, slot: WorkerSlot) -> None:
        """The worker gives up its permit."""
        permit = slot.permit
        if permit is not FREE:
            slot.permit = FREE
            self.store(self.end(permit, 0, 0))
            self.permits.release(permit)

    def store(self, puts: Puts) -> None:
        """Store what ``end`` returned, where no settle follows."""
        if puts:
            self.shaper.write([], puts)

    def set_idle(self, path: PathKey, idle: int) -> None:
        """The number of sessions without a request has changed on a path from an address to a provider."""
        provider, source = path
        makes_room = self.permits.set_idle(provider, source or source_name(PoolAddress()), idle)
        if makes_room and provider in self.wait_lists:
            asyncio.get_running_loop().call_soon(self.wait_lists.capacity_at_provider, provider)

    def learn(self, domain: str, answer: MxAnswer) -> None:
        """The MX hosts of ``domain`` were found."""
        self.providers.learn(domain, answer, clock.monotonic_s())

    # ---- time

    def _arm(self) -> None:
        due = [each for each in (self.wait_lists.due_ms, self.shaper.due_ms) if each is not None]
        if not due or self._closed:
            return
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, (min(due) - self.now_ms()) / 1000)
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay_s + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        self.shaper.run_due(now_ms)
        self.wait_lists.run_due(now_ms)
        self._arm()

    # ---- at intervals and in the end

    async def forget_old(self) -> None:
        """Forget what no longer counts, a little at a time. Raises QueueUnavailable."""
        now_ms = self.now_ms()
        ahead_ms = clock.now_ms() - now_ms
        if abs(ahead_ms - self._ahead_ms) > CLOCK_SET_MS:
            self._ahead_ms = ahead_ms
            self.warmup.not_after(self.calendar_ms(now_ms))
            self.shaper.go_on(dict(self.shaper.controller.paces), dict(self.shaper.engine.reroutes))
            self.changed()  # another day may have begun
        self.shaper.forget_old(now_ms)
        for _ in self.permits.forget_unused(now_ms):
            await asyncio.sleep(0)
        await delete_old(self.queue, now_ms)

    def record_due(self) -> None:
        """No reply follows: record the changes that were due before the last one, as a replay finds them."""
        self.shaper.run_due(self.now_ms())

    def close(self) -> None:
        """No worker follows."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.look_ups.close()
