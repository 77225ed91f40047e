"""The warm-up of addresses, with time as an argument."""

from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.egress.limits import EgressLimits, Permit
from zonemta_py.egress.paths import Refusal
from zonemta_py.egress.warmup import DAY_MS, EPOCH, Warming, WarmUp, WarmupState, plan

BEGINS = date(2026, 11, 1)
DAY = BEGINS.toordinal() - EPOCH
SCHEDULE = WarmupSchedule("192.0.2.1", BEGINS, (2, 5, 10), "")


def at(day: int, ms: int = 0) -> int:
    return (DAY + day) * DAY_MS + ms


def room(warmup: WarmUp, address: str, provider: str) -> int | None:
    """How many recipients may be sent to on the first day; None: any number."""
    rooms = [each.room(at(0)) for each in warmup.of(address, provider)]
    return min((each for each in rooms if each is not None), default=None)


def allowed(stored: dict[tuple[str, str], WarmupState]) -> EgressLimits:
    """What a relay allows that has only the schedule."""
    made = EgressLimits(lambda provider, address: None)
    made.warmup.configure([SCHEDULE], stored)
    return made


def test_the_numbers_of_the_days() -> None:
    """Nothing before it begins, and no limit after its last day."""
    warming = Warming(SCHEDULE, WarmupState())
    assert [warming.room(at(day)) for day in range(-1, 4)] == [0, 2, 5, 10, None]


def test_what_was_sent_and_what_is_under_way() -> None:
    warming = Warming(SCHEDULE, WarmupState())
    warming.underway = 1
    assert warming.room(at(0)) == 1
    warming.underway = 0
    warming.count(2, at(0, 5))
    assert (warming.room(at(0, 6)), warming.room(at(1))) == (0, 5)
    again = Warming(SCHEDULE, warming.state)
    assert again.room(at(0, 7)) == 0, "over a restart"


def test_it_slows_down_once_a_day() -> None:
    warming = Warming(SCHEDULE, WarmupState())
    assert warming.slow(at(1))
    assert not warming.slow(at(1, 5))
    assert [warming.allowed(DAY + day) for day in (1, 2, 3, 4)] == [5, 5, 10, None]
    assert not warming.slow(at(9)), "it has no numbers any more"


def test_what_a_small_provider_refuses_slows_no_schedule_for_all_mail() -> None:
    """It must have a twentieth of the recipients of today and the day before; a schedule for one provider is about that."""
    everything = Warming(replace(SCHEDULE, daily=(1000, 2000)), WarmupState())

    def tries(provider: str, count: int, day: int) -> bool:
        for _ in range(count):
            everything.tried(provider, at(day))
        return everything.depends_on(provider)

    assert [tries("big", 1, 0), tries("big", 379, 0)] == [True, True]
    assert [tries("small", 19, 0), tries("small", 1, 0)] == [False, True]
    assert not tries("first", 1, 1), "of the day, and of 401 in two"
    assert tries("big", 1, 2), "the day before is that with any"
    assert Warming(replace(SCHEDULE, provider="big"), WarmupState()).depends_on("big")


def test_a_pause_stays_at_its_number() -> None:
    warming = Warming(SCHEDULE, WarmupState())
    warming.pause(at(1))
    assert [warming.allowed(DAY + day) for day in (1, 2, 7)] == [5, 5, 5]
    warming.resume(at(7))
    assert [warming.allowed(DAY + day) for day in (7, 8, 9)] == [5, 10, None]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 6)),  # a message, and its recipients
        st.tuples(
            st.just("end"), st.integers(0, 5), st.integers(0, 6)
        ),  # of one under way, some were seen
        st.tuples(st.just("later"), st.sampled_from([1, DAY_MS // 2, DAY_MS, 2 * DAY_MS])),
        st.tuples(st.just("restart")),
    ),
    max_size=80,
)


@given(OPERATIONS)
def test_a_number_is_never_exceeded(operations: list[Any]) -> None:
    """Whatever is under way at a time, and over restarts; and what there is room for is granted."""
    allowance, now_ms, sent = allowed({}), at(0), Counter[int]()
    underway: list[tuple[Permit, int]] = []
    for operation, *numbers in operations:
        day = now_ms // DAY_MS - DAY
        most = SCHEDULE.daily[day] if day < len(SCHEDULE.daily) else None
        if operation == "later":
            now_ms += numbers[0]
        elif operation == "restart":
            [warming] = allowance.warmup.all()
            allowance, underway = allowed({warming.key: warming.state}), []
        elif operation == "end" and underway:
            permit, recipients = underway.pop(numbers[0] % len(underway))
            seen = min(recipients, numbers[1])
            allowance.finish(permit, seen, 0, now_ms)
            sent[day] += seen
        elif operation == "take":
            answer = allowance.take("google", [PoolAddress("192.0.2.1")], now_ms)
            room = None if most is None else most - sent[day] - sum(number for _, number in underway)
            assert isinstance(answer, Permit) == (room is None or room > 0)
            if isinstance(answer, Permit):
                granted = allowance.recipients_max(answer, numbers[0], now_ms)
                assert granted == (numbers[0] if room is None else min(numbers[0], room))
                underway.append((answer, granted))
    for number, most in enumerate(SCHEDULE.daily):
        assert sent[number] <= most


def test_schedules_by_address_and_provider() -> None:
    """Mail to a provider counts for its schedule and for that of all mail; a reload keeps what was sent."""
    own = WarmupSchedule("192.0.2.1", BEGINS, (1,), "google")
    warmup = WarmUp()
    warmup.configure([SCHEDULE, own], {("192.0.2.1", ""): WarmupState(day=DAY, sent=1)})
    assert room(warmup, "192.0.2.1", "google") == 1
    for each in warmup.of("192.0.2.1", "google"):
        each.count(1, at(0))
    assert (room(warmup, "192.0.2.1", "google"), room(warmup, "192.0.2.1", "x")) == (0, 0)
    assert room(warmup, "192.0.2.2", "google") is None
    warmup.configure([SCHEDULE], {})
    assert room(warmup, "192.0.2.1", "x") == 0
    warmup.configure([SCHEDULE, own], {})
    assert room(warmup, "192.0.2.1", "google") == 0, "it was away for a moment"


def test_why_an_address_waits_before_its_first_day_and_on_it() -> None:
    made = allowed({})
    entries = [PoolAddress("192.0.2.1")]
    early = made.take("google", entries, at(-7, 5_000))
    assert isinstance(early, Refusal)
    assert (early.reason, early.until_ms) == ("192.0.2.1 is new and begins on 2026-11-01", at(0))
    for _ in range(SCHEDULE.daily[0]):
        permit = made.take("google", entries, at(0))
        assert isinstance(permit, Permit)
        made.finish(permit, 1, 0, at(0))
    late = made.take("google", entries, at(0, 5_000))
    assert isinstance(late, Refusal)
    assert (late.reason, late.until_ms) == ("192.0.2.1 is new and has sent its number of the day", at(1))


def test_why_an_address_waits_that_was_paused_before_its_first_day() -> None:
    made = allowed({})
    [warming] = made.warmup.all()
    warming.pause(at(-7))
    found = made.take("google", [PoolAddress("192.0.2.1")], at(3, 5_000))
    assert isinstance(found, Refusal)
    assert (found.reason, found.until_ms) == (
        "192.0.2.1 is new and was paused before its first day",
        at(4),
    )
    warming.resume(at(3))
    assert isinstance(made.take("google", [PoolAddress("192.0.2.1")], at(3, 5_000)), Permit)
    assert warming.allowed(at(4) // DAY_MS) == SCHEDULE.daily[1]


def test_a_pause_stays_when_a_schedule_begins_anew() -> None:
    """Nothing is sent of one that has not begun; it begins when the pause ends, or on its first day."""
    for ends, first in ((3, 5), (9, 9)):
        warming = Warming(SCHEDULE, WarmupState())
        warming.pause(at(1))
        warming.use(replace(SCHEDULE, begins=BEGINS + timedelta(days=5)))
        day = at(0) // DAY_MS
        warming.not_after(day + 1)
        assert [warming.allowed(day + each) for each in (4, 5, 9)] == [0] * 3
        warming.resume(at(ends))
        numbers = [warming.allowed(day + first + each) for each in (-1, 0, 1)]
        assert numbers == [0, *SCHEDULE.daily[:2]]


def test_a_schedule_that_begins_anew_is_not_late() -> None:
    """Days that an earlier one was late by would keep back all mail of the first days of a new one."""
    late = Warming(SCHEDULE, WarmupState())
    for day in range(3):
        assert late.slow(at(day))
    late.count(1, at(2))
    again = replace(SCHEDULE, begins=BEGINS + timedelta(days=2))
    for warmup, stored in ((WarmUp(), late.state), (WarmUp(), WarmupState())):
        warmup.configure([SCHEDULE], {("192.0.2.1", ""): stored} if stored.delay_days else {})
        if not stored.delay_days:
            [each] = warmup.of("192.0.2.1", "google")
            for day in range(3):
                assert each.slow(at(day))
            each.count(1, at(2))
        warmup.configure([again], {})
        [each] = warmup.of("192.0.2.1", "google")
        assert each.late_days(DAY + 3) == 0
        assert each.room(at(2)) == SCHEDULE.daily[0] - 1, "what was sent today counts"
    unchanged = WarmUp()
    unchanged.configure([SCHEDULE], {("192.0.2.1", ""): late.state})
    [each] = unchanged.of("192.0.2.1", "google")
    assert each.late_days(DAY + 3) == 3


def test_a_schedule_that_a_later_reload_brings_goes_on() -> None:
    """It was not in the file at the start: what was sent today counts."""
    warmup = WarmUp()
    warmup.configure([], {("192.0.2.1", ""): WarmupState(day=DAY, sent=1)})
    warmup.configure([SCHEDULE], {})
    assert room(warmup, "192.0.2.1", "google") == SCHEDULE.daily[0] - 1


def test_a_plan_grows_to_its_target() -> None:
    made = plan(1000, BEGINS, "192.0.2.1", first=200, growth=2.0)
    assert made.daily == (200, 400, 800, 1000)
    assert plan(50, BEGINS, "192.0.2.1").daily == (50,)
