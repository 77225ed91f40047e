"""The warm-up of addresses, with time as an argument."""

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.warmup import WarmupSchedule
from zonemta_py.schedule.warmup import DAY_MS, EPOCH, Warming, WarmUp, WarmupState, plan

BEGINS = date(2026, 11, 1)
DAY = BEGINS.toordinal() - EPOCH
SCHEDULE = WarmupSchedule("192.0.2.1", BEGINS, (2, 5, 10), "")


def at(day: int, ms: int = 0) -> int:
    return (DAY + day) * DAY_MS + ms


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


def test_a_pause_stays_at_its_number() -> None:
    warming = Warming(SCHEDULE, WarmupState())
    warming.pause(at(1))
    assert [warming.allowed(DAY + day) for day in (1, 2, 7)] == [5, 5, 5]
    warming.go_on(at(7))
    assert [warming.allowed(DAY + day) for day in (7, 8, 9)] == [5, 10, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60))
def test_a_number_is_never_exceeded(messages: list[tuple[int, int]]) -> None:
    """Of messages of several recipients each, as many recipients are sent to as there is room for."""
    warming, day, sent = Warming(SCHEDULE, WarmupState()), 0, dict.fromkeys(range(300), 0)
    for days, recipients in messages:
        day += days
        room = warming.room(at(day))
        taken = recipients if room is None else min(recipients, room)
        warming.count(taken, at(day))
        sent[day] += taken
    for number, allowed in enumerate(SCHEDULE.daily):
        assert sent[number] <= allowed


def test_schedules_by_address_and_provider() -> None:
    """Mail to a provider counts for its schedule and for that of all mail; a reload keeps what was sent."""
    own = WarmupSchedule("192.0.2.1", BEGINS, (1,), "google")
    warmup = WarmUp()
    warmup.configure([SCHEDULE, own], {("192.0.2.1", ""): WarmupState(day=DAY, sent=1)})
    assert warmup.room("192.0.2.1", "google", at(0)) == 1
    for each in warmup.of("192.0.2.1", "google"):
        each.count(1, at(0))
    assert (warmup.room("192.0.2.1", "google", at(0)), warmup.room("192.0.2.1", "x", at(0))) == (0, 0)
    assert warmup.room("192.0.2.2", "google", at(0)) is None
    warmup.configure([SCHEDULE], {})
    assert warmup.room("192.0.2.1", "x", at(0)) == 0
    warmup.configure([SCHEDULE, own], {})
    assert warmup.room("192.0.2.1", "google", at(0)) == 0, "it was away for a moment"


def test_a_plan_grows_to_its_target() -> None:
    made = plan(1000, BEGINS, "192.0.2.1", first=200, growth=2.0)
    assert made.daily == (200, 400, 800, 1000)
    assert plan(50, BEGINS, "192.0.2.1").daily == (50,)
