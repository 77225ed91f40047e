"""The port of ``egress`` in a relay: its clock, its timer, its queue, and the look-ups of providers. In the queue's process.

``Egress`` is the ``SharedEgress`` of all zones of a queue. What it decides is decided there; here it meets the event loop, the
mail and the suspensions of the queue, and what is stored under ``meta/sending/``. ``LookUps`` finds the MX hosts of domains
before their first delivery. States of a domain in it::

    waiting ─▶ quick ─▶ learned, and the calls that waited are made
                 └──▶ slow ─▶ learned

Invariants:

- Times of egress are unix ms of a clock that is never set (``now_ms``). Days of warm-up and events have the system clock's;
  ``forget_old`` notices when that was set, and corrects what was noted before.
- One timer is armed at most, for the first thing that is due; one that comes too early is armed again.
- After a change of limits or suspensions, ``changed`` forgets the caches and lets what waits try.
- A domain is looked up once for all that ask. At most LOOK_UPS_MAX look-ups are quick and SLOW_MAX slow; one that finds nothing is
  learned, too, so nothing waits forever.
- A change and its event are written together: in the batch that settles the message, or in one of their own (``Shaper``).

Callers: ``ZoneEgress`` and ``MessageEgress`` by the methods of ``SharedEgress``; ``relay.delivery_service`` for reloads, idle
sessions and ``forget_old``; ``egress_operator`` shows and changes it. ``DeliveryContext.egress`` makes it for the first zone.

Example: mail for a new domain waits for ``LookUps``. ``learn`` notes that its MX hosts are Google's, and the call that waited makes
it ready, with the limits of ``google``.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from zonemta_py.config.providers import ProviderTable, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.shaping import check_pools, check_rule_providers, load_shaping
from zonemta_py.config.warmup import check_warmups, read_warmups
from zonemta_py.core import clock
from zonemta_py.core.errors import AgentLost, ConfigError
from zonemta_py.core.model import Attempt, PathKey
from zonemta_py.delivery.shaper import (
    EgressFiles,
    Shaper,
    delete_old,
    read_stored,
    use_puts,
    warmup_put,
)
from zonemta_py.egress.limits import FREE, Permit
from zonemta_py.egress.providers import Providers
from zonemta_py.egress.rules import ProviderReply
from zonemta_py.egress.shared import Puts, Resolve, SharedEgress
from zonemta_py.egress.sources import source_name
from zonemta_py.egress.warmup import WarmupState
from zonemta_py.events.schema import Event
from zonemta_py.queue.outcome import classify_attempts
from zonemta_py.queue.queue import Queue
from zonemta_py.smtp.mx_order import NO_MX_ANSWER, MxAnswer

log = logging.getLogger(__name__)


# A look-up is *quick* in its first second: most have their answer then, from a name server that answers. LOOK_UPS_MAX
# are quick at a time, so the resolver is not flooded. One that takes longer waits for a name server that may not
# answer at all; it gives its place to the next one, and counts among SLOW_MAX. Of the domains that wait, the newest and the
# oldest are looked up in turn: mail that has just come does not wait behind thousands of dead domains, and those are reached.
# Called by the egress of each zone for the first mail of a domain, and again when its answer has ended.

LOOK_UPS_MAX = 100  # at the same time, that are quick
QUICK_S = 1.0
SLOW_MAX = 2000  # each has a socket's place in c-ares and a task, about 5 KB


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


# ---- the files


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


# ---- what the zones share

CLOCK_SET_MS = 1000
LOOK_AHEAD_MAX = 1000  # domains that are looked up before their turn


class Egress(SharedEgress):
    """One for all zones of a queue."""

    def __init__(self, queue: Queue, config: Config) -> None:
        super().__init__(queue.windows, queue.suspended)
        self.queue = queue
        self._epoch_ms = clock.now_ms() - round(clock.monotonic_s() * 1000)
        self._ahead_ms = 0  # by how much the clock was set since
        self.providers = Providers(ProviderTable({}))
        self._timer: asyncio.TimerHandle | None = None
        self.look_ups = LookUps(self.learn)
        self.shaper = Shaper(queue, self)
        self._closed = False
        stored = read_stored(queue.store)
        self.configure(config, read_egress(config), stored.warmups)
        self.permits.restore(stored.uses, self.now_ms())
        self.shaper.restore(stored.paces, stored.reroutes)
        self.arm()

    def configure(
        self,
        config: Config,
        files: EgressFiles,
        stored: dict[tuple[str, str], WarmupState] | None = None,
    ) -> None:
        """Use another configuration; what is under way, and what was used, continues to count."""
        self.files = files
        self.providers.configure(files.table)
        self.use(files.table, config.pools, config.shaping.controller, files.rules)
        self.warmup.configure(files.schedules, stored or {})
        self.warmup.not_after(self.calendar_ms(self.now_ms()))
        self.changed()

    def changed(self) -> None:
        """Something that limits has changed: find out again what is free, and let what waits try."""
        self.forget_caches()
        self.arm()
        for wait_list in self.wait_lists.all():
            if not wait_list.key.cause:
                self.wait_lists.capacity_at_provider(wait_list.provider)
                continue
            kind, _, name = wait_list.key.cause.partition(":")
            stopped = self.stopped((kind, name))
            if stopped is not None:
                self.wait_lists.set_refusal(wait_list, stopped[1])
            else:
                self.wait_lists.release(wait_list, self.now_ms())

    # ---- clock and timer

    def now_ms(self) -> int:
        """The time in unix ms by a clock that is never set: windows and steps must not jump."""
        return self._epoch_ms + round(clock.monotonic_s() * 1000)

    def calendar_ms(self, now_ms: int) -> int:
        """The unix time in ms by the system clock, as far as ``forget_old`` has noticed that it was set."""
        return now_ms + self._ahead_ms

    def steady_ms(self, calendar_ms: int) -> int:
        """The time of the clock that is never set at ``calendar_ms`` (unix ms), which was a moment ago."""
        return calendar_ms - self._ahead_ms

    def arm(self) -> None:
        due_ms = self.due_ms
        if due_ms is None or self._closed:
            return
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, (due_ms - self.now_ms()) / 1000)
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
        self.arm()

    # ---- providers

    def provider(self, domain: str) -> str | None:
        return self.providers.get(domain)

    def families(self, domain: str) -> str:
        return self.providers.families(domain)

    def must_look_up(self, domain: str) -> bool:
        return self.providers.is_not_found(domain, clock.monotonic_s())

    def asks_hosts(self, domain: str) -> bool:
        return self.providers.is_stale(domain, clock.monotonic_s())

    def lacks_hosts(self, domain: str) -> bool:
        return self.providers.lacks_hosts(domain)

    def look_up(self, domain: str, resolve: Resolve, then: Callable[[], None]) -> None:
        self.look_ups.add(domain, resolve, then)

    def looks_up(self, domain: str) -> bool:
        return domain in self.look_ups

    def may_look_ahead(self) -> bool:
        return len(self.look_ups) < LOOK_AHEAD_MAX

    def learn(self, domain: str, answer: MxAnswer) -> None:
        self.providers.learn(domain, answer, clock.monotonic_s())

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
        if permit is FREE or not permit.granted:
            return []
        stored, warming = self.finish(permit, sent, opened, self.now_ms())
        return use_puts(stored) + [warmup_put(each) for each in warming]

    def store(self, puts: Puts) -> None:
        if puts:
            self.shaper.write([], puts)

    def classified(
        self, attempts: Sequence[Attempt | None], provider: str, sender: str
    ) -> Sequence[Attempt | None]:
        return classify_attempts(self.queue.classifier, attempts, provider, sender)

    def replied(
        self, replies: Sequence[ProviderReply], message: str, now_ms: int
    ) -> tuple[list[Event], Puts]:
        return self.shaper.replies(replies, message, self.steady_ms(now_ms))

    def set_idle(self, path: PathKey, idle: int) -> None:
        """The number of sessions without a request has changed on a path from an address to a provider."""
        provider, source = path
        makes_room = self.permits.set_idle(provider, source or source_name(PoolAddress()), idle)
        if makes_room and provider in self.wait_lists:
            asyncio.get_running_loop().call_soon(self.wait_lists.capacity_at_provider, provider)

    # ---- at intervals and in the end

    async def forget_old(self) -> None:
        """Forget what no longer counts, a little at a time. Raises QueueUnavailable."""
        now_ms = self.now_ms()
        ahead_ms = clock.now_ms() - now_ms
        if abs(ahead_ms - self._ahead_ms) > CLOCK_SET_MS:
            self._ahead_ms = ahead_ms
            self.warmup.not_after(self.calendar_ms(now_ms))
            self.shaper.restore(dict(self.shaper.controller.paces), dict(self.shaper.engine.reroutes))
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
