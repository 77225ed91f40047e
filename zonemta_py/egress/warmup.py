"""How much a new source address may send today: the schedules of the warm-up file, and what was sent. Pure.

States of a schedule, by its place on a day (``step``)::

    before its first day: nothing ─▶ on its days: the number of each ─▶ over: any number

Two things make it late by a day: the controller has lowered the pace (``slow``), or an operator has paused it, for each day of the
pause. Its number is repeated then.

Invariants:

- A day is one of UTC. What is under way counts with what was sent, so that a number is never exceeded.
- A schedule is slowed once a day at most, and not while it is paused or when it is over.
- Days that were noted while the clock was ahead are corrected (``not_after``).
- A schedule that begins on another day than the stored one begins anew, but for a pause, and what was sent today.
- A schedule that a reload removes keeps its state, for one that brings it back.

Callers: ``EgressLimits`` asks ``room`` for each message and counts what was sent; ``SharedEgress`` slows, ``egress_operator``
pauses and resumes; the states are stored by ``delivery.shaper``.

Example: the numbers are 200, 320 and 512 from 1 May on. Slowed on 2 May, the address may send to 320 recipients on 3 May again,
and to 512 on 4 May.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import NamedTuple

from zonemta_py.config.warmup import WarmupSchedule

DAY_MS = 86_400_000
NOTABLE = 5  # percent of the recipients of two days: less of it at a provider says little of the address
KNOWN_MAX = 10_000  # paths whose schedules are remembered
EPOCH = date(1970, 1, 1).toordinal()


class WarmupState(NamedTuple):
    """The part of a schedule that must survive a restart, as stored. Days are counted from 1970-01-01.

    ``delay_days``: by how many it is late. ``slowed_day``: the last on which it was slowed down; ``paused_day``: since
    when it is paused, 0 if not. ``sent`` recipients on ``day``. ``begins``: the first day of the schedule that this is about, 0 in
    states of earlier versions.
    """

    version: int = 1
    delay_days: int = 0
    slowed_day: int = 0
    paused_day: int = 0
    day: int = 0
    sent: int = 0
    begins: int = 0


class Warming:
    """One schedule and its state."""

    __slots__ = (
        "_day",
        "_today",
        "_tried",
        "_tried_before",
        "_tried_day",
        "schedule",
        "state",
        "underway",
    )

    def __init__(self, schedule: WarmupSchedule, state: WarmupState) -> None:
        self.state = state
        self.underway = 0
        self._today: int | None = 0
        # Recipients by provider since the start: on ``_tried_day``, and on the day before with any.
        self._tried, self._tried_before = Counter[str](), Counter[str]()
        self._tried_day = 0
        self.use(schedule)

    def use(self, schedule: WarmupSchedule) -> None:
        """Use this schedule. Delays of one that began on another day do not count for it; a pause stays."""
        self.schedule = schedule
        begins, state = schedule.begins.toordinal() - EPOCH, self.state
        if state.begins not in (0, begins):
            state = WarmupState(paused_day=state.paused_day, day=state.day, sent=state.sent)
        self.state = state._replace(begins=begins)
        self._day = -1  # of ``_today``, what is allowed on it

    @property
    def key(self) -> tuple[str, str]:
        """Its address and provider, empty for all."""
        return self.schedule.address, self.schedule.provider

    def not_after(self, day: int) -> None:
        """Correct days that were noted while the clock was ahead: none is later than ``day``."""
        state = self.state
        slowed_day, paused_day = min(state.slowed_day, day), min(state.paused_day, day + 1)
        last_day = min(state.day, day)
        self._set(state._replace(slowed_day=slowed_day, paused_day=paused_day, day=last_day))

    def step(self, day: int) -> int:
        """The place of ``day`` in the schedule; negative before it begins."""
        return day - self.state.begins - self.late_days(day)

    def late_days(self, day: int) -> int:
        """By how many days it is late, those of a pause included."""
        state = self.state
        late = state.delay_days - (state.slowed_day == day)  # its own number is repeated tomorrow
        return late + (max(0, day - state.paused_day) if state.paused_day else 0)

    def allowed(self, day: int) -> int | None:
        """How many recipients on ``day``; None: no limit any more."""
        step, daily = self.step(day), self.schedule.daily
        if step < 0:
            return 0
        return daily[step] if step < len(daily) else None

    def room(self, now_ms: int) -> int | None:
        """How many recipients may be sent to now; None: any number."""
        day = now_ms // DAY_MS
        if day != self._day:  # each message asks
            self._day, self._today = day, self.allowed(day)
        allowed = self._today
        if allowed is None:
            return None
        sent = self.state.sent if self.state.day == day else 0
        return max(0, allowed - sent - self.underway)

    def why_none(self, day: int) -> tuple[str, int]:
        """Why there is no room on ``day``, and after how many days that is another one."""
        step = self.step(day)
        if step >= 0:
            return "has sent its number of the day", 1
        if self.state.paused_day and self.state.paused_day <= day:
            return "was paused before its first day", 1
        return f"begins on {date.fromordinal(EPOCH + day - step)}", -step

    def tried(self, provider: str, now_ms: int) -> None:
        """A recipient of ``provider`` has a reply, also one to the connection."""
        day = now_ms // DAY_MS
        if day != self._tried_day:
            self._tried_before, self._tried, self._tried_day = self._tried, Counter(), day
        self._tried[provider] += 1

    def count(self, recipients: int, now_ms: int) -> None:
        """Count ``recipients`` that were sent to."""
        day, state = now_ms // DAY_MS, self.state
        version, delay_days, slowed_day, paused_day, last_day, sent, begins = state
        sent = recipients + (sent if last_day == day else 0)
        self.state = WarmupState(
            version=version, delay_days=delay_days, slowed_day=slowed_day, paused_day=paused_day, day=day, sent=sent,
            begins=begins,
        )  # fmt: skip

    def depends_on(self, provider: str) -> bool:
        """True if what ``provider`` refuses says something of the schedule: of all mail a notable part must go there."""
        if self.schedule.provider:
            return True
        there = self._tried[provider] + self._tried_before[provider]
        return there * 100 >= (self._tried.total() + self._tried_before.total()) * NOTABLE

    def slow(self, now_ms: int) -> bool:
        """Repeat the number of today tomorrow; False: that is so already, or it has no numbers any more."""
        day, state = now_ms // DAY_MS, self.state
        if state.paused_day or state.slowed_day >= day or self.allowed(day) is None:
            return False
        self._set(state._replace(slowed_day=day, delay_days=state.delay_days + 1))
        return True

    def _set(self, state: WarmupState) -> None:
        self.state = state
        self._day = -1

    def pause(self, now_ms: int) -> None:
        """Stay at the number of today."""
        day, state = now_ms // DAY_MS, self.state
        if not state.paused_day:  # a day that was slowed is late tomorrow anyway
            self._set(state._replace(paused_day=day + (state.slowed_day == day)))

    def resume(self, now_ms: int) -> None:
        """End a pause. A schedule that was paused before its first day begins now, or on that day."""
        paused_day, day = self.state.paused_day, now_ms // DAY_MS
        if paused_day:
            late = self.state.delay_days + max(0, day - max(paused_day, self.state.begins))
            self._set(self.state._replace(paused_day=0, delay_days=late))


class WarmUp:
    """All schedules."""

    def __init__(self) -> None:
        self._warming: dict[tuple[str, str], Warming] = {}
        # Those that a reload has removed: another one may bring them back.
        self._left: dict[tuple[str, str], Warming] = {}
        self._stored: dict[tuple[str, str], WarmupState] = {}  # of an earlier run, not used so far
        self._of: dict[tuple[str, str], tuple[Warming, ...]] = {}  # each message asks

    def configure(
        self, schedules: Iterable[WarmupSchedule], stored: dict[tuple[str, str], WarmupState]
    ) -> None:
        """Use these schedules; ``stored``: states of an earlier run, also for those that a later call brings."""
        self._stored |= stored
        self._left |= self._warming
        self._warming = {}
        self._of.clear()
        for schedule in schedules:
            key = schedule.address, schedule.provider
            known = self._left.pop(key, None)
            if known is not None:
                known.use(schedule)
            self._warming[key] = known or Warming(schedule, self._stored.pop(key, WarmupState()))

    def not_after(self, now_ms: int) -> None:
        """Correct the days of every schedule, at the start and when the clock was set: none is later than ``now_ms``."""
        for each in self._warming.values():
            each.not_after(now_ms // DAY_MS)

    def __bool__(self) -> bool:
        return bool(self._warming)

    def all(self) -> Sequence[Warming]:
        """Every schedule."""
        return list(self._warming.values())

    def of(self, address: str, provider: str) -> Sequence[Warming]:
        """The schedules that mail from ``address`` to ``provider`` counts for."""
        found = self._of.get((address, provider))
        if found is None:
            both = self._warming.get((address, provider)), self._warming.get((address, ""))
            found = tuple(each for each in both if each is not None)
            if len(self._of) >= KNOWN_MAX:
                self._of.clear()
            self._of[address, provider] = found
        return found


def plan(
    target: int, begins: date, address: str, provider: str = "", first: int = 200, growth: float = 1.6
) -> WarmupSchedule:
    """A schedule that grows by ``growth`` a day from ``first`` to ``target`` recipients a day."""
    daily: list[int] = []
    number = float(min(first, target))
    while number < target:
        daily.append(round(number))
        number *= growth
    return WarmupSchedule(address, begins, (*daily, target), provider)
