"""Turns, slow start, suspensions and the budget of connections without a session, on a virtual clock."""

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zonemta_py.config.values import Rate
from zonemta_py.config.zones import Zone
from zonemta_py.core.model import PoolKey
from zonemta_py.egress.admission import (
    ANY_MAIL,
    LIMIT_S,
    SUSPENDED_MAX_S,
    Admitted,
    Destination,
    Unlimited,
    WorkerSlot,
)
from zonemta_py.egress.paths import Binding, Limit
from zonemta_py.schedule.scheduler import (
    ALL_TRIED_S,
    FAILING,
    FRESH,
    FRESH_S,
    KNOWN_S,
    PROBE_S,
    TRY_MIN_S,
    Scheduler,
)


def ignore(destination: Destination) -> None:
    """An ``on_room`` of tests that ask for the next worker themselves."""


def scheduler_of(**zone: Any) -> Scheduler:
    return Scheduler(Zone(**zone), 0.0, ignore)


def started(scheduler: Scheduler, now_s: float = 0.0) -> list[WorkerSlot]:
    """Every worker that may start now."""
    slots = []
    while (slot := scheduler.next(now_s)) is not None:
        slots.append(slot)
    return slots


def leasing(scheduler: Scheduler, now_s: float = 0.0) -> list[WorkerSlot]:
    """Every worker that may start now, each with a lease before the next; there is more mail."""
    slots = []
    while (slot := scheduler.next(now_s)) is not None:
        assert scheduler.leased(slot, now_s, more=True)
        assert not scheduler.leased(slot, now_s, more=True), "reported once"
        slots.append(slot)
    return slots


def names(slots: list[WorkerSlot]) -> list[str]:
    return [slot.destination.name for slot in slots]


def answer(scheduler: Scheduler, name: str, now_s: float = 0.0) -> None:
    """One message is delivered to the destination."""
    scheduler.ready(name, now_s)
    [slot] = started(scheduler, now_s)
    scheduler.leased(slot, now_s, more=False)
    scheduler.session_opened(slot, now_s)
    scheduler.session_ended(slot)
    scheduler.ended(slot, now_s, has_mail=False)


def fail(scheduler: Scheduler, slot: WorkerSlot, now_s: float = 0.0, delay_s: float = 30.0) -> None:
    """No session could be opened; there is more mail."""
    scheduler.failed(slot.destination, delay_s, now_s, "refused")
    scheduler.ended(slot, now_s, has_mail=True)


# ---- turns and limits


def test_turns_and_limits() -> None:
    """Destinations take turns; a full zone makes room for others; the limits of the zone hold."""
    scheduler = scheduler_of(connections=3, connections_per_domain=2)
    for name in "ab":
        answer(scheduler, name)
    for name in "ab":
        scheduler.ready(name, 0.0)
    a, b = started(scheduler)  # the second of a waits until the first has its session
    assert names([a, b]) == ["a", "b"]
    for slot in (a, b):
        scheduler.leased(slot, 0.0, more=True)
    scheduler.session_opened(a, 0.0)
    assert names(started(scheduler)) == ["a"]
    scheduler.session_opened(b, 0.0)
    assert started(scheduler) == [], "three connections"
    scheduler.ready("b", 0.0)
    assert scheduler.should_yield(a, 10)
    assert not scheduler.should_yield(a, 9)
    scheduler.ended(b, 0.0, has_mail=False)
    scheduler.empty("b")
    scheduler.ready("a", 0.0)
    assert started(scheduler) == [], "a is at its own limit"
    scheduler.ended(a, 0.0, has_mail=True)
    assert started(scheduler) == [], "the other worker of a has no session yet"


def test_a_single_message_wakes_a_single_worker() -> None:
    """However many the destination has: the next one starts when the one before has a lease, and more waits."""
    scheduler = scheduler_of(connections=100)
    for _ in range(4):
        scheduler.ready("a", 0.0)
        for slot in leasing(scheduler):
            scheduler.session_opened(slot, 0.0)
    assert scheduler.active == 8
    scheduler.ready("a", 0.0)
    [newcomer] = started(scheduler)
    assert not scheduler.leased(newcomer, 0.0, more=False)
    assert started(scheduler) == []


def test_slow_start() -> None:
    """One worker until its first session, then twice as many with every round of sessions."""
    scheduler = scheduler_of(connections=100, connections_per_domain=20)
    scheduler.ready("a", 0.0)
    rounds, slots = [], leasing(scheduler)
    while slots:
        rounds.append(len(slots))
        for slot in slots:
            scheduler.session_opened(slot, 0.0)
        scheduler.ready("a", 0.0)
        slots = leasing(scheduler)
    assert rounds == [1, 1, 2, 4, 8, 4]


def test_urgent_mail_is_next() -> None:
    """Its destination is first, and a worker of another makes room after each lease."""
    scheduler = scheduler_of(connections=1)
    for name in "abc":
        answer(scheduler, name)
    scheduler.ready("a", 0.0)
    [a] = started(scheduler)
    scheduler.session_opened(a, 0.0)
    scheduler.ready("b", 0.0)
    scheduler.ready("c", 0.0, urgent=True)
    assert scheduler.should_yield(a, 1)
    scheduler.ended(a, 0.0, has_mail=True)
    [c] = started(scheduler)
    assert c.destination.name == "c"
    assert not scheduler.should_yield(c, 1)


def test_a_learned_limit_holds_for_a_while() -> None:
    """A refusal while others work is the peer's connection limit; later one more session is tried at a time."""
    scheduler = scheduler_of(connections=10, connections_per_domain=8)
    scheduler.ready("a", 0.0)
    [first] = leasing(scheduler)
    scheduler.session_opened(first, 0.0)
    scheduler.ready("a", 0.0)
    [second] = leasing(scheduler)
    scheduler.session_opened(second, 0.0)
    scheduler.ready("a", 0.0)
    refused = leasing(scheduler)
    assert len(refused) == 2
    first.destination.limit_reached(0.0)
    for slot in refused:
        scheduler.ended(slot, 0.0, has_mail=True)
    assert started(scheduler, LIMIT_S - 1) == []
    scheduler.ready("a", LIMIT_S)
    [third] = leasing(scheduler, LIMIT_S)
    scheduler.session_opened(third, LIMIT_S)
    scheduler.ready("a", LIMIT_S)
    assert len(leasing(scheduler, LIMIT_S)) == 1, "the limit is three now, and a fourth is tried"


# ---- suspended destinations


def test_a_failing_destination_is_suspended_and_probed_by_one() -> None:
    """After a failure no worker tries until the suspension is over, then one alone; a success ends it."""
    scheduler = scheduler_of(connections=10, connections_per_domain=5)
    scheduler.ready("a", 0.0)
    [a] = started(scheduler)
    scheduler.leased(a, 0.0, more=True)
    fail(scheduler, a)
    assert started(scheduler, 10.0) == []
    scheduler.ready("a", 31.0)
    [probe] = started(scheduler, 31.0)
    scheduler.leased(probe, 31.0, more=True)
    assert started(scheduler, 31.0) == []
    scheduler.session_opened(probe, 31.0)
    probe.destination.answered()
    assert not probe.destination.failing
    scheduler.ready("a", 31.0)
    assert names(started(scheduler, 31.0)) == ["a"]
    state = scheduler.state("a")
    assert state is not None and not state.failing


def test_an_operator_ends_suspensions() -> None:
    """One or all; each destination may be probed at once."""
    scheduler = scheduler_of()
    for name in ("a", "b"):
        scheduler.ready(name, 0.0)
        [slot] = started(scheduler)
        assert scheduler.failed(slot.destination, 10**6, 0.0, "refused") == SUSPENDED_MAX_S
        scheduler.ended(slot, 0.0, has_mail=True)
    assert scheduler.resume("a") == ["a"]
    assert scheduler.resume(None) == ["a", "b"]
    assert scheduler.resume("c") == []
    for name in ("a", "b"):
        scheduler.ready(name, 1.0)
    assert sorted(names(started(scheduler, 1.0))) == ["a", "b"]


# ---- the budget of connections without a session (decision 65)


def test_destinations_that_do_not_answer_take_a_third() -> None:
    """Those that have answered lately are not limited."""
    scheduler = scheduler_of(connections=100)
    for number in range(3):
        answer(scheduler, f"known{number}")
    for number in range(5000):
        scheduler.ready(f"dead{number}", 0.0)
    assert len(started(scheduler)) == 33
    scheduler.ready("known0", 0.0)
    assert names(started(scheduler)) == ["known0"]
    scheduler.ready("known1", KNOWN_S - 1)
    scheduler.ready("known2", KNOWN_S)
    assert names(started(scheduler)) == ["known1"], "known2 has not answered for an hour"


def test_mail_that_has_just_come_goes_first() -> None:
    """Three quarters of the third are for it, the newest first; a quarter is for the oldest, if there is newer mail."""
    scheduler = scheduler_of(connections=100)
    for number in range(5000):
        scheduler.ready(f"dead{number}", 0.0)
    first = names(started(scheduler))
    assert set(first) == {f"dead{n}" for n in (*range(8), *range(4975, 5000))}
    later_s = FRESH_S + 1
    scheduler = scheduler_of(connections=100)
    for number in range(5000):
        scheduler.ready(f"dead{number}", 0.0)
    assert len(started(scheduler, later_s)) == 25, "no mail has just come"
    for number in range(20):
        scheduler.ready(f"new{number}", later_s)
    assert names(started(scheduler, later_s)) == [f"new{number}" for number in range(19, 11, -1)]


def test_the_time_for_a_session() -> None:
    """It is shorter the more destinations wait to be tried, and longer in the second try; the third has what the zone allows."""
    scheduler = scheduler_of(connections=24)
    for number in range(6):
        scheduler.ready(f"d{number}", 0.0)
    slots = started(scheduler)
    assert [slot.session_within_s for slot in slots] == [ALL_TRIED_S] * 6
    for number in range(6, 100):
        scheduler.ready(f"d{number}", 0.0)
    for slot in slots:
        fail(scheduler, slot)
        scheduler.ready(slot.destination.name, 30.0)
    found = {slot.turn_queue: slot for slot in started(scheduler, 30.0)}
    assert found[FRESH].session_within_s == TRY_MIN_S
    assert found[FAILING].session_within_s == PROBE_S
    fail(scheduler, found[FAILING], 30.0)
    scheduler.ready(found[FAILING].destination.name, 9999.0)


def test_a_probe_without_mail_forgets_nothing() -> None:
    """The third try has the time that the zone allows, although the second found no mail; so has one that is alone."""
    scheduler = scheduler_of(connections=3)
    scheduler.ready("alone", 0.0)
    [slot] = started(scheduler)
    assert slot.session_within_s == 0.0
    scheduler.leased(slot, 0.0, more=False)
    scheduler.ended(slot, 0.0, has_mail=False)
    for number in range(9):
        scheduler.ready(f"d{number}", 0.0)
    [first] = started(scheduler)
    assert first.session_within_s == TRY_MIN_S
    name = first.destination.name
    for _ in range(2):
        fail(scheduler, first)
        for number in range(9):
            scheduler.empty(f"d{number}")
        scheduler.ready(name, 30.0)
        [probe] = started(scheduler, 30.0)
        scheduler.ended(probe, 30.0, has_mail=False)  # its mail waits for its own time
        assert scheduler.state(name) is None
        for number in range(9):
            scheduler.ready(f"d{number}", 300.0)
        scheduler.ready(name, 300.0)
        [first] = started(scheduler, 300.0)
        assert first.destination.name == name
    assert first.session_within_s == 0.0
    scheduler.session_opened(first, 300.0)


def test_a_few_have_the_time_that_the_zone_allows() -> None:
    """A quarter of the budget: hosts that greet late are not cut off while there is room."""
    scheduler = scheduler_of(connections=24)
    found = []
    for number in range(3):
        scheduler.ready(f"d{number}", 0.0)
        [slot] = started(scheduler)
        scheduler.leased(slot, 0.0, more=False)
        found.append(slot.session_within_s)
    assert found == [0.0, 0.0, ALL_TRIED_S]


def test_probes_take_a_quarter() -> None:
    """Mail for destinations that were never tried does not wait behind those that fail again."""
    scheduler = scheduler_of(connections=36)  # 12 without a session
    for number in range(40):
        scheduler.ready(f"dead{number}", 0.0)
    while slots := started(scheduler):
        for slot in slots:
            fail(scheduler, slot)
    for number in range(40):
        scheduler.ready(f"dead{number}", 30.0)
    assert len(started(scheduler, 30.0)) == 3
    for number in range(10):
        scheduler.ready(f"new{number}", 30.0)
    found = names(started(scheduler, 30.0))
    assert len(found) == 9
    assert {name[:3] for name in found} == {"new"}


def test_a_message_without_a_session_costs_no_token() -> None:
    """Sixty destinations refuse; the one that answers has its token at once."""
    scheduler = scheduler_of(rate=Rate(4, 1.0))
    for number in range(60):
        scheduler.ready(f"refusing{number}", 0.0)
    while slots := started(scheduler):
        for slot in slots:
            assert scheduler.next_lease(slot, 0.0)
            scheduler.failed(slot.destination, 30.0, 0.0, "refused")
            scheduler.ended(slot, 0.0, has_mail=True)
    scheduler.ready("good", 0.0)
    [slot] = started(scheduler)
    assert scheduler.session_opened(slot, 0.0) == 0


def test_few_look_for_a_session_at_a_low_rate() -> None:
    """With a message per minute there is one; what it costs is due when it is sent."""
    scheduler = scheduler_of(rate=Rate(1, 60.0))
    for number in range(5):
        scheduler.ready(str(number), 0.0)
    [slot] = started(scheduler)
    assert scheduler.session_opened(slot, 0.0) == 0
    assert not scheduler.next_lease(slot, 0.0)
    scheduler.configure(Zone(rate=Rate(1, 60.0)), 1.0)
    assert scheduler.rate_wait_s(1.0) == 59, "a reload gives no token"


def test_a_domain_whose_provider_answers_needs_no_budget() -> None:
    """It has waited for a limit of its provider: domains that do not answer must not keep it waiting further."""
    scheduler = scheduler_of(connections=9)
    for number in range(9):
        scheduler.ready(f"dead{number}", 0.0)
    assert len(started(scheduler)) == 3
    scheduler.ready("new", 1.0)
    assert names(started(scheduler, 1.0)) == []
    scheduler.ready("new", 1.0, answers=True)
    assert names(started(scheduler, 1.0))[:1] == ["new"]


class InAWaitList(Unlimited):
    """The admission of a zone in which one destination waits for a limit of its provider."""

    waiting = Binding(Limit.PROVIDER_RATE, 1.0, 2.0, "one message a second")

    def admit(self, destination: str) -> Admitted | None:
        return None if destination == "d1" else ANY_MAIL

    def binding(self, destination: str, now_s: float, pool_key: PoolKey) -> Binding | None:
        return self.waiting if destination == "d1" else None


def test_mail_that_waits_for_its_provider_does_not_wait_for_a_connection() -> None:
    scheduler = Scheduler(Zone(connections=1), 0.0, ignore, admission=InAWaitList())
    scheduler.ready("d1", 0.0)
    assert scheduler.next(0.0) is None
    for name in ("d2", "d3"):
        scheduler.ready(name, 0.0)
    [slot] = started(scheduler)
    assert scheduler.binding("d1", 1.5) == InAWaitList.waiting
    [waiting] = {"d2", "d3"} - {slot.destination.name}
    binding = scheduler.binding(waiting, 1.5)
    assert binding is not None
    assert binding.limit is Limit.CONNECTIONS


@given(
    st.integers(1, 12),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60),
)
def test_all_mail_is_served_in_the_end(
    connections: int, per_domain: int, mail: list[tuple[int, bool]]
) -> None:
    """Whatever waits, with sessions that open at once and with no event from outside."""
    waiting = Counter(f"{number}" for number, _ in mail)
    zone = Zone(connections=connections, connections_per_domain=per_domain)

    def on_room(destination: Destination) -> None:
        if waiting[destination.name]:
            scheduler.ready(destination.name, 0.0)

    scheduler = Scheduler(zone, 0.0, on_room)
    for number, urgent in mail:
        scheduler.ready(f"{number}", 0.0, urgent=urgent)
    while slots := started(scheduler):
        for slot in slots:
            name = slot.destination.name
            if waiting[name]:
                waiting[name] -= 1
                scheduler.leased(slot, 0.0, more=waiting[name] > 0)
                scheduler.session_opened(slot, 0.0)
                scheduler.session_ended(slot)
            else:
                scheduler.empty(name)
            scheduler.ended(slot, 0.0, has_mail=waiting[name] > 0)
    assert waiting.total() == 0
    assert (scheduler.active, scheduler.needs_token) == (0, 0)


class SchedulerMachine(RuleBasedStateMachine):
    """Workers start, get sessions, fail and end in any order; the limits hold in every state."""

    @initialize(
        connections=st.integers(1, 30),
        per_domain=st.integers(1, 8),
        rate=st.sampled_from([None, Rate(1, 1.0), Rate(3, 60.0), Rate(1000, 1.0)]),
    )
    def begin(self, connections: int, per_domain: int, rate: Rate | None) -> None:
        self.now_s = 0.0
        self.zone = Zone(connections=connections, connections_per_domain=per_domain, rate=rate)
        self.with_mail: set[str] = set()
        self.scheduler = Scheduler(self.zone, 0.0, ignore)
        self.slots: list[WorkerSlot] = []
        self.sessions: list[WorkerSlot] = []

    @rule(number=st.integers(0, 40), urgent=st.booleans())
    def mail(self, number: int, urgent: bool) -> None:
        self.scheduler.ready(f"d{number}", self.now_s, urgent=urgent)
        self.with_mail.add(f"d{number}")

    @rule()
    def start(self) -> None:
        """Start all that may start. Mail that has no worker then waits for one limit, which has a name."""
        self._start_all()
        for name in self.with_mail:
            assert self.scheduler.binding(name, self.now_s) or self._active(name), name

    def _start_all(self) -> None:
        if self.scheduler.rate_wait_s(self.now_s) == 0:
            self.slots += started(self.scheduler, self.now_s)

    def _active(self, name: str) -> int:
        return sum(slot.destination.name == name for slot in self.slots)

    @precondition(lambda self: self.with_mail)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        """Lift what keeps the mail of a destination waiting, and what does then: it gets another worker."""
        name = data.draw(st.sampled_from(sorted(self.with_mail)))
        self._start_all()
        before = self._active(name)
        for _ in range(500):
            binding = self.scheduler.binding(name, self.now_s)
            if binding is None:
                break
            assert binding.since_s <= self.now_s
            self._lift(name, binding)
            self.scheduler.ready(name, self.now_s)
            self._start_all()
            if self._active(name) > before:
                break
        else:
            raise AssertionError(f"{name} does not move: {binding}")
        assert self._active(name)

    def _lift(self, name: str, binding: Binding) -> None:
        zone = self.zone
        match binding.limit:
            case Limit.UNREACHABLE:
                self._advance(binding.until_s)
            case Limit.RATE:
                self._open_sessions(None)  # messages that look for a session may have all tokens
                self._advance(max(self.now_s, binding.until_s) + 0.001)
            case Limit.LEARNED_LIMIT:
                self._open_sessions(name)
                self._advance(max(self.now_s, binding.until_s))
            case Limit.CONNECTIONS:
                self._configure(replace(zone, connections=self.scheduler.active + 1))
            case Limit.CONNECTIONS_PER_DOMAIN:
                self._configure(replace(zone, connections_per_domain=self._active(name) + 1))
            case Limit.PROBE | Limit.SLOW_START:
                self._open_sessions(name)
            case Limit.UNANSWERED_BUDGET:
                self._open_sessions(None)

    def _configure(self, zone: Zone) -> None:
        self.zone = zone
        self.scheduler.configure(zone, self.now_s)

    def _open_sessions(self, name: str | None) -> None:
        for slot in self.slots:
            if name not in (None, slot.destination.name):
                continue
            if slot.first_lease:
                self.scheduler.leased(slot, self.now_s, more=slot.destination.name in self.with_mail)
            if slot not in self.sessions:
                self.scheduler.session_opened(slot, self.now_s)
                self.sessions.append(slot)
                slot.destination.answered()

    @rule(step_s=st.floats(0, 120))
    def time_passes(self, step_s: float) -> None:
        self._advance(self.now_s + step_s)

    def _advance(self, now_s: float) -> None:
        """Time passes, and the timers of suspensions call."""
        before_s, self.now_s = self.now_s, now_s
        for name in self.with_mail:
            state = self.scheduler.state(name)
            if state is not None and state.failing and before_s < state.down_until_s <= now_s:
                self.scheduler.ready(name, now_s)

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), more=st.booleans())
    def lease(self, data: st.DataObject, more: bool) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        self.scheduler.leased(slot, self.now_s, more=more)
        self._note(slot, more)

    def _note(self, slot: WorkerSlot, has_mail: bool) -> None:
        (self.with_mail.add if has_mail else self.with_mail.discard)(slot.destination.name)

    @precondition(lambda self: any(slot not in self.sessions for slot in self.slots))
    @rule(data=st.data())
    def session(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([s for s in self.slots if s not in self.sessions]))
        self.scheduler.session_opened(slot, self.now_s)
        self.sessions.append(slot)
        slot.destination.answered()

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), failed=st.booleans(), has_mail=st.booleans())
    def end(self, data: st.DataObject, failed: bool, has_mail: bool) -> None:
        slot = data.draw(st.sampled_from(self.slots))
        self.slots.remove(slot)
        if slot in self.sessions:
            self.sessions.remove(slot)
            self.scheduler.session_ended(slot)
        elif failed:
            if slot.destination.working:
                slot.destination.limit_reached(self.now_s)
            else:
                self.scheduler.failed(slot.destination, 30.0, self.now_s, "refused")
        self.scheduler.ended(slot, self.now_s, has_mail=has_mail)
        self._note(slot, has_mail)

    @invariant()
    def limits_hold(self) -> None:
        if not hasattr(self, "slots"):
            return
        scheduler, zone = self.scheduler, self.zone
        assert scheduler.active == len(self.slots) <= zone.connections
        by_name = Counter(slot.destination.name for slot in self.slots)
        assert max(by_name.values(), default=0) <= zone.connections_per_domain
        for slot in self.slots:
            destination = slot.destination
            mine = [s for s in self.slots if s.destination is destination]
            assert destination.active == len(mine)
            assert destination.starting == sum(not s.established for s in mine)
            assert destination.has_newcomer == any(s.first_lease for s in mine)
            assert sum(s.first_lease for s in mine) <= 1
            assert destination.working == sum(s in self.sessions for s in mine)
        assert scheduler.needs_token == sum(slot.needs_token for slot in self.slots)
        trying = [
            s for s in self.slots if not s.established and s.turn_queue.name not in ("KNOWN", "URGENT")
        ]
        assert len(trying) <= max(1, zone.connections // 3)


TestSchedulerMachine = SchedulerMachine.TestCase
