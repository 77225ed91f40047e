"""Lowers the pace from an address to a provider after refusals, and raises it again by steps. Pure; times are ms.

Multiplicative decrease: of the sessions and the rate, at a reply of the class ``blocked`` and when more than a share of
the attempts of an interval was deferred for reasons of ours. Additive increase: a step of the ceiling for each quiet
interval.

States of a path (provider and address): full, without a ``Pace``; lowered, with one; and paused, with one that sends nothing
before ``paused_ms``. A reply lowers it (``attempt``), a rule lowers, holds or pauses it (``lower``, ``pause``), time raises it
(``advance``), until it is full and its pace is dropped; an operator may drop it (``end``). Each returns the ``ShapingChange`` that it
made, which ``SharedEgress.apply`` carries out.

Invariants:

- The state depends on nothing but the settings, the limits and the attempts with their times, in their order, so that the event
  log gives it again (``zonemta shaping replay``).
- Replies lower a path once within a tenth of an interval (APART), and not while it is paused: their messages were under way.
- A pace is never below one session and one message a minute, and rises to ``top_sessions`` and ``top_rate``, where it is dropped.
- A step has the time at which it was due, also if ``advance`` is called late.

Callers: ``ShapingEngine``; the pace becomes a ``Ceiling`` (``paths``) by ``SharedEgress``.

Example: a path with 100 messages a minute that is blocked at 12:00 may have 50, and with an interval of 5 minutes and steps of a
tenth it has 60 at 12:05 and 100 at 12:25. Source: Chiu and Jain, "Analysis of the increase and decrease algorithms", 1989.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from zonemta_py.config.providers import ProviderLimits
from zonemta_py.config.sending import ControllerSettings
from zonemta_py.config.values import HOUR, Rate
from zonemta_py.core.model import PathKey

# Classes of replies that concern the sender; the others concern a mailbox, or the receiver.
OF_SENDER = frozenset(
    {"blocked", "spam_content", "rate_limited", "connection_limited", "policy", "authentication"}
)  # fmt: skip
# A temporary reply of these says no more than "later", as those of servers do that get too much.
SAYS_LATER = frozenset({"other", "server_error"})
BLOCKED = "blocked"
APART = 10  # a decrease is not repeated within this part of an interval: its replies were under way
SAME_PERIOD = 100  # a pause, or a rule, that is longer by this part of it is the same
MINUTE_S = 60.0


class Pace(NamedTuple):
    """The sessions and the rate that are allowed from an address to a provider, as stored: ``rate`` is messages a minute.

    It was changed at ``changed_ms``, and rises to ``top_sessions`` and ``top_rate``. Nothing is sent before
    ``paused_ms``; a rule holds it down until ``kept_ms``. Replies lowered it last at ``lowered_ms``.
    """

    version: int
    sessions: int
    rate: int
    top_sessions: int
    top_rate: int
    changed_ms: int
    paused_ms: int
    cause: str
    kept_ms: int = 0  # this and what follows: since version 2
    lowered_ms: int = 0

    def __str__(self) -> str:
        until = f" until {self.kept_ms}" if self.kept_ms else ""
        return f"{self.sessions} sessions, {self.rate}/m{until}"


PACE_VERSION = 2


class ShapingChange(NamedTuple):
    """A change of sending, when and why; ``before`` and ``after`` as text."""

    time_ms: int
    provider: str
    address: str
    what: str
    before: str
    after: str
    cause: str
    is_raise: bool = False  # more is allowed than before


def _change(
    key: PathKey, time_ms: int, *, what: str, before: str, after: str, cause: str, is_raise: bool = False
) -> ShapingChange:
    provider, address = key
    return ShapingChange(
        time_ms=time_ms, provider=provider, address=address, what=what, before=before, after=after, cause=cause,
        is_raise=is_raise,
    )  # fmt: skip


def slowed_warmup(change: ShapingChange) -> ShapingChange:
    """The change of a warm-up that a lower pace slows down: the address has the same number tomorrow."""
    steps = "the next step tomorrow", "the same step tomorrow"
    cause = f"its pace was lowered: {change.cause}"
    return change._replace(what="warmup", before=steps[0], after=steps[1], cause=cause)


FULL = "full"  # the words for what nothing limits
PACE, PAUSE = "pace", "pause"


class Controller:
    """The paces of all addresses at all providers; one that is not here is not limited."""

    def __init__(self) -> None:
        self._settings = ControllerSettings()
        self._limits_of: Callable[[str], ProviderLimits] = lambda provider: ProviderLimits()
        self.paces: dict[PathKey, Pace] = {}
        self._seen: dict[PathKey, _Counts] = {}  # attempts, and those that count as refused

    def configure(
        self, settings: ControllerSettings, limits_of: Callable[[str], ProviderLimits]
    ) -> None:
        """Use other settings; paces stay until they have come up."""
        if settings.interval != self._settings.interval:
            self._seen.clear()
        self._settings, self._limits_of = settings, limits_of

    @property
    def _interval_ms(self) -> int:
        return max(1, round(self._settings.interval * 1000))

    def attempt(
        self, key: PathKey, reply_class: str, now_ms: int, *, code: int = 0
    ) -> list[ShapingChange]:
        """An attempt has ended with a reply of ``reply_class``, empty if it was accepted. Returns what changed."""
        changes = self.advance(key, now_ms)
        is_bad = reply_class in OF_SENDER or (reply_class in SAYS_LATER and code // 100 == 4)
        counts = self._counts(key)
        counts.add(now_ms, self._interval_ms, bad=is_bad)
        if not (self._settings.enabled and is_bad):
            return changes
        pace = self.paces.get(key)
        apart_ms = self._interval_ms // APART
        if pace is not None and now_ms < max(pace.paused_ms, pace.lowered_ms + apart_ms):
            return changes
        if reply_class == BLOCKED:
            changes.append(self._decrease(key, now_ms, "the class of a reply was blocked"))
            return changes
        made, bad = counts.of_last(now_ms, self._interval_ms)
        if made >= self._settings.attempts and bad * 100 > made * self._settings.deferrals:
            cause = f"{bad} of {made} attempts were refused or deferred"
            changes.append(self._decrease(key, now_ms, cause))
            del self._seen[key]
        return changes

    def _counts(self, key: PathKey) -> "_Counts":
        found = self._seen.get(key)
        if found is None:
            found = self._seen[key] = _Counts()
        return found

    def _top(self, key: PathKey, now_ms: int) -> Pace:
        """The pace that is full: the limits of the provider, else how fast was sent lately."""
        limits, observed = self._limits_of(key[0]), self._observed(key, now_ms)
        # The mean of a day is no pace.
        limited = [rate.events / rate.per_s * MINUTE_S for rate in limits.rate if rate.per_s < HOUR]
        rate = max(1, round(min(limited, default=observed)))
        given = filter(None, (limits.sessions_per_address, limits.sessions))
        sessions = min(given, default=self._settings.sessions)
        return Pace(
            version=PACE_VERSION, sessions=sessions, rate=rate, top_sessions=sessions, top_rate=rate, changed_ms=now_ms,
            paused_ms=0, cause="",
        )  # fmt: skip

    def _observed(self, key: PathKey, now_ms: int) -> float:
        """How many messages a minute were sent lately."""
        return self._counts(key).rate(now_ms, self._interval_ms) * MINUTE_S

    def _decrease(self, key: PathKey, now_ms: int, cause: str) -> ShapingChange:
        before = self.paces.get(key)
        pace = before or self._top(key, now_ms)
        made, _ = self._counts(key).of_last(now_ms, self._interval_ms)
        if pace.rate == pace.top_rate and made >= self._settings.attempts:
            # Half of a limit that is far away would change nothing.
            pace = pace._replace(rate=min(pace.rate, max(1, round(self._observed(key, now_ms)))))
        part = (100 - self._settings.decrease) / 100
        return self._set(
            key, pace._replace(
                sessions=max(1, int(pace.sessions * part)), rate=max(1, int(pace.rate * part)),
                changed_ms=max(pace.changed_ms, now_ms), lowered_ms=now_ms, cause=cause,
            ), now_ms, cause,
        )  # fmt: skip

    def _set(self, key: PathKey, pace: Pace, time_ms: int, cause: str) -> ShapingChange:
        before = self.paces.get(key)
        self.paces[key] = pace
        return _change(
            key, time_ms, what=PACE, before=str(before) if before else FULL, after=str(pace), cause=cause
        )

    def lower(
        self, key: PathKey, until_ms: int, now_ms: int, to: tuple[int | None, int | None, str]
    ) -> ShapingChange | None:
        """Allow no more than ``to`` (sessions, messages a minute, cause) until ``until_ms``, then come up by steps.

        None: no more was allowed before, and about as long.
        """
        sessions, rate, cause = to
        pace = self.paces.get(key) or self._top(key, now_ms)
        is_no_more = (sessions is None or pace.sessions <= sessions) and (
            rate is None or pace.rate <= rate
        )
        if is_no_more and _is_as_long(pace.kept_ms, until_ms, now_ms):
            return None
        lowered = pace._replace(
            sessions=pace.sessions if sessions is None else max(1, min(pace.sessions, sessions)),
            rate=pace.rate if rate is None else max(1, min(pace.rate, rate)),
            changed_ms=max(pace.changed_ms, until_ms - self._interval_ms), kept_ms=max(pace.kept_ms, until_ms),
            cause=cause,
        )  # fmt: skip
        return self._set(key, lowered, now_ms, cause)

    def top(self, key: PathKey, now_ms: int) -> Pace:
        """The pace that is full, for rules that lower it to a share."""
        return self.paces.get(key) or self._top(key, now_ms)

    def pause(self, key: PathKey, until_ms: int, now_ms: int, cause: str) -> ShapingChange | None:
        """Send nothing until ``until_ms``, then come up from the floor; None: that is so already."""
        pace = self.paces.get(key) or self._top(key, now_ms)
        if _is_as_long(pace.paused_ms, until_ms, now_ms):
            return None
        before = "sending" if pace.paused_ms <= now_ms else f"paused until {pace.paused_ms}"
        self.paces[key] = pace._replace(
            sessions=1, rate=max(1, pace.top_rate * self._settings.step // 100),
            changed_ms=until_ms, paused_ms=until_ms, lowered_ms=until_ms, cause=cause,
        )  # fmt: skip
        return _change(
            key, now_ms, what=PAUSE, before=before, after=f"paused until {until_ms}", cause=cause
        )

    def end(self, key: PathKey, now_ms: int, cause: str) -> ShapingChange | None:
        """Forget the pace, as an operator asks for it; None: there is none, and counts stay, as in a replay."""
        pace = self.paces.pop(key, None)
        if pace is None:
            return None
        self._seen.pop(key, None)
        return _change(key, now_ms, what=PACE, before=str(pace), after=FULL, cause=cause, is_raise=True)

    def due_ms(self, key: PathKey) -> int | None:
        """When the pace comes up by a step."""
        pace = self.paces.get(key)
        if pace is None:
            return None
        return max(pace.changed_ms + self._interval_ms, pace.paused_ms, pace.kept_ms)

    def advance(self, key: PathKey, now_ms: int) -> list[ShapingChange]:
        """Come up by the steps that are due."""
        changes: list[ShapingChange] = []
        while (due_ms := self.due_ms(key)) is not None and due_ms <= now_ms:
            pace = self.paces[key]
            raised = pace._replace(
                sessions=min(pace.top_sessions, pace.sessions + self._step(pace.top_sessions)),
                rate=min(pace.top_rate, pace.rate + self._step(pace.top_rate)), changed_ms=due_ms, kept_ms=0,
            )  # fmt: skip
            cause = f"quiet for {self._settings.interval:g} s"
            if (raised.sessions, raised.rate) == (pace.top_sessions, pace.top_rate):
                del self.paces[key]
                changes.append(
                    _change(
                        key, due_ms, what=PACE, before=str(pace), after=FULL, cause=cause, is_raise=True
                    )
                )
            else:
                changes.append(self._set(key, raised, due_ms, cause)._replace(is_raise=True))
        return changes

    def _step(self, top: int) -> int:
        return max(1, -(-top * self._settings.step // 100))

    def counts(self, now_ms: int) -> Iterator[tuple[PathKey, int, int]]:
        """The attempts of the last interval, and those that were refused or deferred for reasons of ours."""
        for key, counts in list(self._seen.items()):
            yield key, *counts.of_last(now_ms, self._interval_ms)

    def forget_idle(self, now_ms: int) -> None:
        """Drop the counts of where nothing was sent lately."""
        for key, counts in list(self._seen.items()):
            if now_ms - counts.began_ms > 2 * self._interval_ms:
                del self._seen[key]


class _Counts:
    """Attempts in the present period and the one before: together they estimate those of the last interval."""

    __slots__ = ("attempts", "attempts_before", "bad", "bad_before", "began_ms", "first_ms")

    def __init__(self) -> None:
        self.began_ms = 0
        self.first_ms = 0  # of the first attempt that counts
        self.attempts = self.attempts_before = self.bad = self.bad_before = 0

    def add(self, now_ms: int, interval_ms: int, *, bad: bool) -> None:
        self._turn(now_ms, interval_ms)
        self.attempts += 1
        self.bad += bad

    def _turn(self, now_ms: int, interval_ms: int) -> None:
        began_ms = now_ms - now_ms % interval_ms
        if began_ms == self.began_ms:
            return
        follows = began_ms - self.began_ms == interval_ms
        self.first_ms = max(self.first_ms, self.began_ms) if follows else now_ms
        self.attempts_before, self.attempts = self.attempts if follows else 0, 0
        self.bad_before, self.bad = self.bad if follows else 0, 0
        self.began_ms = began_ms

    def rate(self, now_ms: int, interval_ms: int) -> float:
        """Attempts a second, since the first that counts: mail often comes in bursts."""
        attempts, _ = self.of_last(now_ms, interval_ms)
        return attempts / max(1.0, min(interval_ms, now_ms - self.first_ms) / 1000)

    def of_last(self, now_ms: int, interval_ms: int) -> tuple[int, int]:
        """The attempts of the last interval, and those among them that were bad."""
        self._turn(now_ms, interval_ms)
        left_ms = interval_ms - now_ms % interval_ms
        return (
            self.attempts + self.attempts_before * left_ms // interval_ms,
            self.bad + self.bad_before * left_ms // interval_ms,
        )


def _is_as_long(until_ms: int, new_ms: int, now_ms: int) -> bool:
    """True if what ends at ``new_ms`` is what ends at ``until_ms``: the replies followed at once."""
    return until_ms + (new_ms - now_ms) // SAME_PERIOD >= new_ms


def rate_of(pace: Pace) -> tuple[Rate, ...]:
    """The rate of a pace, over a second if that is one message or more, else over a minute."""
    if pace.rate >= MINUTE_S:
        return (Rate(int(pace.rate // MINUTE_S), 1.0), Rate(pace.rate, MINUTE_S))
    return (Rate(pace.rate, MINUTE_S),)
