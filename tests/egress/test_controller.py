"""The controller on a virtual clock: back by shares, up by steps, and the same again from the attempts alone."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.values import Percent, Rate, Seconds
from zonemta_py.egress.controller import FULL, Controller, ShapingChange, rate_of

KEY = ("big", "192.0.2.1")
BEGIN_MS = 1_700_000_000_000
MINUTE_MS = 60_000
LIMITS = ProviderLimits(sessions_per_address=20, rate=(Rate(10, 1.0),))


def controller(limits: ProviderLimits = LIMITS, **changes: Any) -> Controller:
    made = Controller()
    made.configure(ControllerSettings(**changes), lambda name: limits)
    return made


def replies(made: Controller, classes: list[str], now_ms: int, step_ms: int = 10) -> list[ShapingChange]:
    return [
        change
        for number, each in enumerate(classes)
        for change in made.attempt(KEY, each, now_ms + number * step_ms)
    ]


def test_a_block_halves_once() -> None:
    """The replies that follow at once were under way."""
    made = controller()
    assert replies(made, [""] * 20, BEGIN_MS - 2000, step_ms=100) == []
    changes = replies(made, ["blocked"] * 30, BEGIN_MS)
    assert [(each.what, each.before, each.after) for each in changes] == [
        ("pace", FULL, "10 sessions, 300/m")
    ]
    changes = replies(made, ["blocked"], BEGIN_MS + MINUTE_MS)
    assert [each.after for each in changes] == ["5 sessions, 150/m"]


def test_a_share_of_deferrals_needs_enough_attempts() -> None:
    made = controller()
    assert replies(made, ["rate_limited"] * 49, BEGIN_MS) == []
    made = controller()
    assert (
        replies(made, [""] * 46 + ["rate_limited"] * 5, BEGIN_MS) == []
    )  # 5 of 51 are not more than 10 %
    [change] = replies(made, ["rate_limited"] * 2, BEGIN_MS + 600)
    assert change.cause == "6 of 52 attempts were refused or deferred"


def test_what_says_nothing_of_the_sender_does_not_count() -> None:
    made = controller()
    classes = ["greylisted", "mailbox_full", "invalid_recipient", "server_error"] * 100
    assert replies(made, classes, BEGIN_MS) == []


def test_up_by_steps_of_the_ceiling() -> None:
    """From the floor to the ceiling takes ten quiet intervals; then nothing is remembered."""
    made = controller(decrease=Percent(99))
    replies(made, [""] * 20, BEGIN_MS - 2000, step_ms=100)
    replies(made, ["blocked"], BEGIN_MS)
    assert str(made.paces[KEY]) == "1 sessions, 6/m"
    changes = made.advance(KEY, BEGIN_MS + 60 * MINUTE_MS)
    assert [each.time_ms - BEGIN_MS for each in changes] == [n * 5 * MINUTE_MS for n in range(1, 11)]
    assert changes[0].after == "3 sessions, 66/m"
    assert changes[-1].after == FULL
    assert all(each.is_raise for each in changes)
    assert KEY not in made.paces


def test_the_ceiling_is_the_lowest_limit() -> None:
    """Of rates within an hour, by the minute; and of the sessions."""
    rates = (Rate(10, 1.0), Rate(60, 60.0), Rate(200_000, 86_400.0))
    made = controller(ProviderLimits(sessions=4, sessions_per_address=20, rate=rates))
    [change] = replies(made, ["blocked"], BEGIN_MS)
    assert change.after == "2 sessions, 30/m"


def test_it_is_lowered_from_what_was_sent() -> None:
    """Half of a limit that is far away would let everything through; it comes up to that limit."""
    made = controller()
    replies(made, [""] * 60 + ["blocked"], BEGIN_MS, step_ms=1000)
    pace = made.paces[KEY]
    assert (pace.rate, pace.top_rate) == (30, 600)
    assert [each.after for each in replies(made, ["blocked"], BEGIN_MS + 2 * MINUTE_MS)] == [
        "5 sessions, 15/m"
    ]


def test_replies_that_say_later_count() -> None:
    """Most servers that get too much say no more; what they refuse for good is about the mail."""
    for code, lowered in ((451, True), (554, False)):
        made = controller()
        changes: list[ShapingChange] = []
        for number in range(60):
            reply_class = ("other", "server_error", "")[number % 3]
            changes += made.attempt(KEY, reply_class, BEGIN_MS + number, code=code)
        assert bool(changes) == lowered


def test_without_limits_the_ceiling_is_what_was_sent() -> None:
    """How fast, and not the mean of an interval: mail comes in bursts."""
    made = controller(ProviderLimits())
    replies(made, [""] * 100 + ["blocked"], BEGIN_MS, step_ms=20)
    assert made.paces[KEY].top_rate == round(101 / 2.0 * 60)
    assert made.paces[KEY].top_sessions == 20


def test_a_pause_ends_at_the_floor() -> None:
    made = controller()
    until_ms = BEGIN_MS + 60 * MINUTE_MS
    change = made.pause(KEY, until_ms, BEGIN_MS, "rule blocked")
    assert change is not None
    assert made.pause(KEY, until_ms, BEGIN_MS, "rule blocked") is None
    assert made.pause(KEY, until_ms + 500, BEGIN_MS + 500, "rule blocked") is None, "of the same block"
    assert replies(made, ["blocked"] * 5, BEGIN_MS + 1) == [], "it is paused already"
    assert made.advance(KEY, until_ms) == []
    assert (made.paces[KEY].sessions, made.paces[KEY].rate) == (1, 60)
    assert made.due_ms(KEY) == until_ms + 5 * MINUTE_MS


def test_lowered_until_a_time() -> None:
    made = controller()
    until_ms = BEGIN_MS + 60 * MINUTE_MS
    assert made.lower(KEY, until_ms, BEGIN_MS, (None, 150, "rule slow")) is not None
    assert made.lower(KEY, until_ms, BEGIN_MS, (None, 150, "rule slow")) is None
    assert made.advance(KEY, until_ms - 1) == []
    assert made.advance(KEY, until_ms)[0].after == "20 sessions, 210/m"


def test_replies_lower_it_while_a_rule_keeps_it_down() -> None:
    """The floor in minutes, and up by no step before the end of the rule."""
    made = controller()
    until_ms = BEGIN_MS + 60 * MINUTE_MS
    made.lower(KEY, until_ms, BEGIN_MS, (None, 500, "rule slow"))
    for minute in range(1, 12):
        replies(made, ["blocked"] * 30, BEGIN_MS + minute * MINUTE_MS)
    assert (made.paces[KEY].sessions, made.paces[KEY].rate) == (1, 1)
    assert made.due_ms(KEY) == until_ms
    [step] = made.advance(KEY, until_ms)
    assert step.after == "3 sessions, 61/m"


def test_a_rule_that_begins_again_is_a_change() -> None:
    """Its new end is stored and recorded, as the end of a pause is; replies that follow at once are of the same."""
    made = controller()
    hour_ms = 60 * MINUTE_MS
    first = made.lower(KEY, BEGIN_MS + hour_ms, BEGIN_MS, (5, None, "rule slow"))
    assert first is not None
    assert first.after == f"5 sessions, 600/m until {BEGIN_MS + hour_ms}"
    assert made.lower(KEY, BEGIN_MS + hour_ms + 500, BEGIN_MS + 500, (5, None, "rule slow")) is None
    assert made.due_ms(KEY) == BEGIN_MS + hour_ms, "what is not recorded has no effect"
    again = made.lower(KEY, BEGIN_MS + 2 * hour_ms, BEGIN_MS + hour_ms, (5, None, "rule slow"))
    assert again is not None
    assert (again.before, again.after) == (
        first.after,
        f"5 sessions, 600/m until {BEGIN_MS + 2 * hour_ms}",
    )
    assert made.due_ms(KEY) == BEGIN_MS + 2 * hour_ms


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 90_000),
            st.sampled_from(["", "blocked", "lower", "pause"]),
            st.integers(1, 300_000),
        ),
        max_size=60,
    )
)
def test_no_change_without_a_record(steps: list[tuple[int, str, int]]) -> None:
    """The changes give the words of the pace; and a pace always comes up again."""
    made, now_ms, words = controller(interval=Seconds(60.0), attempts=5), BEGIN_MS, FULL
    for wait_ms, what, for_ms in steps:
        now_ms += wait_ms
        changes = made.advance(KEY, now_ms)
        found: ShapingChange | None = None
        if what == "lower":
            found = made.lower(KEY, now_ms + for_ms, now_ms, (3, 60, "rule"))
        elif what == "pause":
            found = made.pause(KEY, now_ms + for_ms, now_ms, "rule")
        else:
            changes += made.attempt(KEY, what, now_ms)
        for change in [*changes, *([found] if found is not None else [])]:
            if change.what == "pace":
                assert change.before == words or "pause" in words
                words = change.after
            else:
                words = "pause"
        if KEY not in made.paces:
            assert words == FULL
        elif words != "pause":
            assert str(made.paces[KEY]) == words
    made.advance(KEY, now_ms + 24 * 60 * MINUTE_MS)
    assert KEY not in made.paces


def test_an_operator_ends_it() -> None:
    made = controller()
    replies(made, ["blocked"], BEGIN_MS)
    assert made.end(KEY, BEGIN_MS + 1, "operator") is not None
    assert made.end(KEY, BEGIN_MS + 1, "operator") is None


def test_the_end_of_no_pace_changes_nothing() -> None:
    """It came up by itself a moment before. There is no event of it, so a replay continues to count."""
    made, replayed = controller(), controller()
    for each in (made, replayed):
        replies(each, ["", "", "policy"], BEGIN_MS)
    assert made.end(KEY, BEGIN_MS + 3, "operator") is None
    assert list(made.counts(BEGIN_MS + 4)) == list(replayed.counts(BEGIN_MS + 4)) != []


ATTEMPTS = st.lists(
    st.tuples(
        st.integers(0, 120_000), st.sampled_from(["", "", "", "blocked", "rate_limited", "policy"])
    ),
    max_size=200,
)


@settings(max_examples=200, deadline=None)
@given(ATTEMPTS, st.lists(st.integers(0, 400_000), max_size=20))
def test_bounds_and_replay(attempts: list[tuple[int, str]], timers: list[int]) -> None:
    """Between the floor and the ceiling, always; and what timers do beside does not change the result."""
    settings_: dict[str, Any] = {"interval": Seconds(60.0), "attempts": 5}
    live, replayed = controller(**settings_), controller(**settings_)
    now_ms, changes, again, timer_ms = BEGIN_MS, [], [], BEGIN_MS
    waiting = list(timers)
    for wait_ms, reply_class in attempts:
        now_ms += wait_ms
        while waiting and timer_ms + waiting[0] <= now_ms:
            timer_ms += waiting.pop(0)
            changes += live.advance(KEY, timer_ms)
        changes += live.attempt(KEY, reply_class, now_ms)
        again += replayed.attempt(KEY, reply_class, now_ms)
        pace = live.paces.get(KEY)
        if pace is not None:
            assert 1 <= pace.sessions <= pace.top_sessions
            assert 1 <= pace.rate <= pace.top_rate
            for rate in rate_of(pace):
                assert rate.events * 60 <= pace.rate * rate.per_s
    assert changes == again


def test_counts_are_forgotten() -> None:
    made = controller()
    replies(made, [""] * 3, BEGIN_MS)
    assert [row for row in made.counts(BEGIN_MS)] == [(KEY, 3, 0)]
    made.forget_idle(BEGIN_MS + 11 * MINUTE_MS)
    assert list(made.counts(BEGIN_MS)) == []
