"""Sessions and messages under way between a provider and a source address, and the limit that refuses more. Pure; times are ms.

``EgressPath`` has both, and a ``Ceiling`` of the controller; ``RateWindows`` counts against rates; ``Refusal`` and ``Binding`` say
which ``Limit`` refuses or binds. States of a message, or of a new session, in ``RateWindows``::

    granted ─ begin ─▶ under way ─ end, or its answer is late ─▶ counted ─ the length of the window later ─▶ forgotten
       └─ cancel ─▶ forgotten

Invariants:

- Nothing is granted beyond the events of a rate in any period of it, as the receiver sees it (decision 97): what is granted, under
  way and counted is one sum. An answer that takes longer than ``_answer_ms`` counts as given by then.
- Messages are spread, too, over periods up to SPREAD_S (decision 109): at FASTER times the rate, and up to BURST_MS at once.
- After a reload what was used continues to count. Uses of windows of STORED_S or more hold over a restart, but for a ceiling's.
- ``refuse`` grants nothing, so it may be asked at any time.
- An empty provider or address stands for the sum over all.

Callers: ``Permits`` keeps the paths, and asks all that a message belongs to; ``SharedEgress`` lets a ceiling follow its pace;
operators see a ``Constraint`` by ``ZoneWorkers.why``.

Example: a rate of 10 in 60 s that is spread, and one message granted at 0. ``wait_ms(0)`` is then 4750: the next is due at 4.8 s,
and may begin half of BURST_MS before.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from zonemta_py.config.plain import rate_text
from zonemta_py.config.values import Rate
from zonemta_py.core.codec import Struct
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.egress.controller import Pace, rate_of

# ---- why mail waits


class Limit(StrEnum):
    """A limit that may keep the mail of a destination waiting."""

    UNREACHABLE = "unreachable"  # it did not answer
    PROBE = "probe"  # it is unreachable, and one worker tries it now
    RATE = "rate"  # of the zone
    CONNECTIONS = "connections"  # of the zone
    CONNECTIONS_PER_DOMAIN = "connections_per_domain"
    LEARNED_LIMIT = "learned_limit"  # the peer takes no more sessions
    SLOW_START = "slow_start"  # its first sessions are being opened
    UNANSWERED_BUDGET = "unanswered_budget"  # connections for destinations that have not answered lately
    PROVIDER_LOOK_UP = "provider_look_up"  # whose hosts receive its mail is being looked up
    PROVIDER_SESSIONS = "provider_sessions"
    PROVIDER_RATE = "provider_rate"
    PROVIDER_CONNECT_RATE = "provider_connect_rate"
    ADDRESS_SESSIONS = "address_sessions"  # of a source address, over all destinations
    ADDRESS_RATE = "address_rate"
    ADDRESS_CONNECT_RATE = "address_connect_rate"
    CONTROLLER = "controller"  # the provider has refused or deferred too much
    PAUSE = "pause"  # of a source address at a provider, by a rule or by the controller
    WARMUP = "warmup"  # the number of the day is reached
    NO_SOURCE = "no_source"  # every address of the pool is disabled or suspended
    OPERATOR = "operator_suspension"  # of the zone, provider, domain or address


class Binding(NamedTuple):
    """The limit that binds: from when, when it is looked at again (0: at an event), and why, as text."""

    limit: Limit
    since_s: float
    until_s: float
    reason: str


class Constraint(Struct, frozen=True):
    """Why a recipient is still waiting: ``name``, from when and until when (unix ms; 0: unknown), and as text.

    ``key`` is that of the configuration which sets it, or empty.
    """

    name: str
    reason: str
    since_ms: int = 0
    until_ms: int = 0
    key: str = ""


def constraint_of(binding: Binding, zone: str, now_s: float, now_ms: int) -> Constraint:
    """The binding limit of ``zone`` for an operator."""
    since_ms = now_ms - int((now_s - binding.since_s) * 1000)
    until_ms = now_ms + int((binding.until_s - now_s) * 1000) if binding.until_s else 0
    key = _KEYS.get(binding.limit, "")
    whole = f"zones.{zone}.{key}" if key else _OTHER_KEYS.get(binding.limit, "")
    return Constraint(binding.limit.value, binding.reason, since_ms, until_ms, whole)


_KEYS = {
    Limit.UNREACHABLE: "retry",
    Limit.PROBE: "retry",
    Limit.RATE: "rate",
    Limit.CONNECTIONS: "connections",
    Limit.CONNECTIONS_PER_DOMAIN: "connections_per_domain",
    Limit.UNANSWERED_BUDGET: "connections",
    Limit.NO_SOURCE: "pool",
}

_OTHER_KEYS = {
    Limit.PROVIDER_SESSIONS: "providers.file",
    Limit.PROVIDER_RATE: "providers.file",
    Limit.PROVIDER_CONNECT_RATE: "providers.file",
    Limit.ADDRESS_SESSIONS: "pools",
    Limit.ADDRESS_RATE: "pools",
    Limit.ADDRESS_CONNECT_RATE: "pools",
    Limit.CONTROLLER: "shaping.controller",
    Limit.PAUSE: "shaping.file",
    Limit.WARMUP: "warmup.file",
}


# ---- rates
#
# A rate holds exactly at the receiver, in any period of its length (decision 97): what was granted counts as used from
# the grant on, and leaves the window its length after it was answered. An answer that takes longer than half a second
# and a tenth of the shortest period counts as given by then: a slow peer must not lower the rate for long.
#
# Messages are also spread over the period (decision 109): a window alone would let all of them begin at its start.

ANSWER_MIN_MS = 500
STORED_S = 60
UNTIL_EVENT = -1  # in place of a time in ms: until something happens, such as the end of a session
SPREAD_S = 60  # rates with a period of at most this are spread, if they have
SPREAD_MIN = 10  # as many events; so that what was missed is made up for,
FASTER = 1.25  # times as fast as the rate,
BURST_MS = 100  # and so much of it at once


class RateUse:
    """One message or session that was granted. ``sent_ms`` 0: it has not begun; ``counted``: its time runs."""

    sent_ms = 0
    counted = False


class RateWindows:
    """The windows of ``rates``; ``stored`` are those whose use holds over a restart: of STORED_S and more.

    ``spread``: what is granted is spread over the periods.
    """

    __slots__ = (
        "_answer_ms", "_granted", "_interval_ms", "_sent", "_spread", "_spread_until_ms", "_stored", "_underway",
        "rates", "windows",
    )  # fmt: skip

    def __init__(self, rates: Sequence[Rate], *, spread: bool = False) -> None:
        self.rates: tuple[Rate, ...] = ()
        self._spread = spread
        self._interval_ms = 0.0  # between two; 0: any
        self._spread_until_ms = 0.0  # where the last one would be if they came at this interval
        self.windows: list[SlidingWindow] = []
        self._granted = 0  # that have not begun
        self._underway = 0  # that have begun and have no answer
        self._sent: deque[RateUse] = deque()
        self.configure(rates)

    def configure(self, rates: Sequence[Rate]) -> None:
        """Use other rates, at least one; what was used continues to count, as far back as the periods of before."""
        before = {rate.per_s: window for rate, window in zip(self.rates, self.windows, strict=True)}
        self.rates = tuple(rates)
        self.windows = [SlidingWindow(rate.events, round(rate.per_s * 1000)) for rate in rates]
        self._stored = [
            (round(rate.per_s * 1000), window)
            for rate, window in zip(self.rates, self.windows, strict=True)
            if rate.per_s >= STORED_S
        ]
        spread = [rate for rate in rates if rate.per_s <= SPREAD_S and rate.events >= SPREAD_MIN]
        if self._spread:
            intervals_ms = (rate.per_s * 1000 / (rate.events * FASTER) for rate in spread)
            self._interval_ms = max(intervals_ms, default=0.0)
        self._answer_ms = max(ANSWER_MIN_MS, round(min(rate.per_s for rate in rates) * 100))
        for rate, window in zip(self.rates, self.windows, strict=True):
            if rate.per_s in before:
                window.copy_uses(before[rate.per_s])
            elif before:
                longer = [per_s for per_s in before if per_s > rate.per_s]
                window.take_over(before[min(longer) if longer else max(before)])

    def wait_ms(self, now_ms: int) -> int:
        """0: one may begin; else when that is to be asked again (unix ms)."""
        sent = self._sent
        if sent and sent[0].sent_ms + self._answer_ms <= now_ms:
            self._expire(now_ms)
        wanted = self._granted + self._underway + 1
        for window in self.windows:
            if window.total + wanted > window.limit:
                return self._opens_ms(now_ms)
        if self._interval_ms and self._spread_until_ms - now_ms > BURST_MS:
            return ceil(self._spread_until_ms) - BURST_MS // 2  # several at once: fewer times to wake up
        return 0

    def _opens_ms(self, now_ms: int) -> int:
        self._expire(now_ms)
        held = self._granted + self._underway
        latest_ms = 0
        for window in self.windows:
            if window.used(now_ms) + held < window.limit:
                continue
            if held >= window.limit:
                # What has not begun yet counts as given when it has begun and that time is over.
                return (self._sent[0].sent_ms if self._sent else now_ms) + self._answer_ms
            latest_ms = max(latest_ms, window.opens_ms(now_ms, held + 1), now_ms + 1)
        return latest_ms

    def grant(self, now_ms: int) -> RateUse:
        """One begins soon; ``wait_ms`` was 0."""
        self._granted += 1
        if self._interval_ms:
            from_ms = self._spread_until_ms
            self._spread_until_ms = (from_ms if from_ms > now_ms else now_ms) + self._interval_ms
        return RateUse()

    def cancel(self, use: RateUse) -> None:
        """It does not begin."""
        self._granted -= 1
        self._spread_until_ms -= self._interval_ms

    def begin(self, use: RateUse, now_ms: int) -> None:
        """It begins now."""
        self._granted -= 1
        self._underway += 1
        use.sent_ms = now_ms
        self._sent.append(use)

    def end(self, use: RateUse, now_ms: int) -> list[tuple[int, int, int]]:
        """It has its answer. Returns (length in ms, slot, use of the slot) of the windows that are stored."""
        sent = self._sent
        if sent and sent[0] is use:
            sent.popleft()  # answers come in the order of the messages, mostly
        if not use.counted:
            use.counted = True
            self._underway -= 1
            for window in self.windows:
                window.add(now_ms, 1)
        if sent and (sent[0].counted or sent[0].sent_ms + self._answer_ms <= now_ms):
            self._expire(now_ms)
        if not self._stored:
            return []
        return [
            (length_ms, *last)
            for length_ms, window in self._stored
            if (last := window.last()) is not None
        ]

    def _count(self, use: RateUse, now_ms: int) -> None:
        use.counted = True
        self._underway -= 1
        for window in self.windows:
            window.add(now_ms, 1)

    def _expire(self, now_ms: int) -> None:
        sent = self._sent
        while sent and (sent[0].counted or sent[0].sent_ms + self._answer_ms <= now_ms):
            use = sent.popleft()
            if not use.counted:
                self._count(use, now_ms)

    def restore(self, length_ms: int, slot: int, used: int, now_ms: int) -> None:
        """Count what an earlier run stored."""
        for rate, window in zip(self.rates, self.windows, strict=True):
            if round(rate.per_s * 1000) == length_ms and window.counts(slot, now_ms):
                window.restore(slot, used)

    def in_use(self, now_ms: int) -> bool:
        """True if anything that was granted counts."""
        self._expire(now_ms)
        return bool(self._granted or self._underway or any(each.used(now_ms) for each in self.windows))

    def used(self, now_ms: int) -> list[tuple[Rate, int]]:
        """Each rate, and how much of it is used."""
        self._expire(now_ms)
        held = self._granted + self._underway
        return [
            (rate, window.used(now_ms) + held)
            for rate, window in zip(self.rates, self.windows, strict=True)
        ]


# ---- paths

KEPT_MS = 60_000  # mail that wants an address takes another one if it has to wait longer, but for the end of a session


class Refusal(NamedTuple):
    """The limit that refuses, until when (ms; or UNTIL_EVENT), and why, as text.

    ``at``: which source addresses have no room for any provider, and until when. If that is so, or several addresses
    refuse together, ``others_ms`` is until when the first of the other limits refuses.
    """

    limit: Limit
    until_ms: int
    reason: str
    at: tuple[tuple[str, int], ...] = ()
    others_ms: int = UNTIL_EVENT
    for_session: bool = False  # it ends when a session does, of any mail
    is_alone: bool = False  # it says nothing of other destinations that wait for the same

    @property
    def timer_ms(self) -> int:
        """When what waits is woken; for a limit of ``at`` it is woken with all others that wait for the address."""
        is_of_several = self.at or self.others_ms != UNTIL_EVENT
        return self.others_ms if is_of_several else self.until_ms

    def is_for_long(self, now_ms: int) -> bool:
        """True if mail that wants this address takes another one; an operator's suspension may have no end."""
        if self.until_ms == UNTIL_EVENT:
            return self.limit is Limit.OPERATOR
        return self.until_ms > now_ms + KEPT_MS


class EgressOrder(Struct, frozen=True, array_like=True):
    """The source address and the provider of a request, and what it may do there.

    ``source`` None: the system chooses the address. ``connects``: how many new sessions it may open, -1: any number.
    ``messages_max``: of one session, 0: any number. ``family``: ipv4, ipv6 or both. ``sessions_max``: how many sessions its
    process may have, from ``source`` to the provider and from all addresses; -1: any number.
    """

    provider: str
    source: str | None
    ehlo: str | None
    connects: int
    messages_max: int
    family: str
    sessions_max: tuple[int, int]

    @property
    def limits_sessions(self) -> bool:
        """True if sessions, or new ones, are limited."""
        return self.connects >= 0 or max(self.sessions_max) >= 0


class Ceiling:
    """The sessions and the rate that the controller allows at a provider from an address, below the limits. ``paused_ms``: nothing until then."""

    __slots__ = ("messages", "paused_ms", "reason", "sessions")

    def __init__(self) -> None:
        self.sessions: int | None = None
        self.messages: RateWindows | None = None
        self.paused_ms = 0
        self.reason = ""

    def follow(self, pace: Pace | None) -> None:
        """Allow what ``pace`` allows; None: anything."""
        if pace is None:
            self.sessions = self.messages = None
            self.paused_ms, self.reason = 0, ""
            return
        self.sessions, self.paused_ms, self.reason = pace.sessions, pace.paused_ms, pace.cause
        self.messages = _windows(self.messages, rate_of(pace), spread=True)


class EgressPath:
    """The sessions and messages under way between a provider and a source address; either is empty for the sum over all.

    ``open``: sessions that are believed to exist, with and without a worker; ``used_ms``: when a
    message in one last began or ended, and, of the sum over all addresses, ``begun_ms``: when one began. ``members``: of the sum over all addresses of a provider, those that have some.
    """

    __slots__ = (
        "address", "begun_ms", "ceiling", "connects", "idle", "members", "messages", "open", "provider", "sessions",
        "sessions_max", "used_ms",
    )  # fmt: skip

    def __init__(self, provider: str, address: str) -> None:
        self.provider = provider
        self.address = address
        self.sessions = 0  # of workers
        self.idle = 0  # sessions without one
        self.open = self.used_ms = self.begun_ms = 0
        self.members: dict[EgressPath, None] = {}
        self.sessions_max: int | None = None
        self.messages: RateWindows | None = None
        self.connects: RateWindows | None = None
        self.ceiling = Ceiling()

    def limit(self, sessions: int | None, rate: Sequence[Rate], connect_rate: Sequence[Rate]) -> None:
        """Apply limits, at first and after a reload."""
        self.sessions_max = sessions
        self.messages = _windows(self.messages, rate, spread=True)
        self.connects = _windows(self.connects, connect_rate, spread=False)

    @property
    def is_limited(self) -> bool:
        """True if anything may be refused here."""
        ceiling = self.ceiling
        return bool(
            self.sessions_max is not None or self.messages or self.connects or ceiling.paused_ms
            or ceiling.sessions is not None or ceiling.messages
        )  # fmt: skip

    def in_use(self, now_ms: int) -> bool:
        """True if it has state that its limits do not say: what is under way, what was used, what is lowered."""
        ceiling = self.ceiling
        return bool(
            self.sessions or self.idle or self.open or self.members
            or ceiling.sessions is not None or ceiling.messages or ceiling.paused_ms > now_ms
            or any(each.in_use(now_ms) for each in (self.messages, self.connects) if each is not None)
        )  # fmt: skip

    def most(self) -> int | None:
        """How many sessions may be open; None: any number."""
        own, lower = self.sessions_max, self.ceiling.sessions
        return own if lower is None else lower if own is None else min(own, lower)

    def refuse(self, now_ms: int, *, session: bool, new: bool) -> Refusal | None:
        """The refusal of a message now, or None; ``session``: in that of a further worker, which is ``new``, not of one that has it."""
        ceiling = self.ceiling
        if now_ms < ceiling.paused_ms:
            return Refusal(Limit.PAUSE, ceiling.paused_ms, ceiling.reason)
        most = self.most()
        # Also a worker that has its session ends, when a limit was lowered below those that are open.
        if most is not None and self.sessions >= most + (not session):
            lowered = ceiling.sessions is not None and most == ceiling.sessions != self.sessions_max
            limit = Limit.CONTROLLER if lowered else self._named(Limit.PROVIDER_SESSIONS)
            reason = f"{self.sessions} of {most} sessions with {self} are in use"
            return self._refusal(limit, UNTIL_EVENT, reason)._replace(for_session=True)
        windows, limit = self.messages, Limit.PROVIDER_RATE
        wait_ms = windows.wait_ms(now_ms) if windows is not None else 0
        if not wait_ms and ceiling.messages is not None:
            windows, limit = ceiling.messages, Limit.CONTROLLER
            wait_ms = windows.wait_ms(now_ms)
        if wait_ms and windows is not None:
            text = f"the rate to {self} is {_rates(windows)}"
            return self._refusal(self._named(limit), wait_ms, text)
        if new and self.connects is not None:
            wait_ms = self.connects.wait_ms(now_ms)
            if wait_ms:
                text = f"new sessions with {self}: {_rates(self.connects)}"
                return self._refusal(self._named(Limit.PROVIDER_CONNECT_RATE), wait_ms, text)
        return None

    def _refusal(self, limit: Limit, until_ms: int, reason: str) -> Refusal:
        return Refusal(limit, until_ms, reason, () if self.provider else ((self.address, until_ms),))

    def _named(self, limit: Limit) -> Limit:
        return limit if self.provider else _OF_ADDRESS.get(limit, limit)

    def __str__(self) -> str:
        if not self.provider:
            return f"all providers from {self.address}"
        return f"{self.provider} from {self.address}" if self.address else self.provider


_OF_ADDRESS = {
    Limit.PROVIDER_SESSIONS: Limit.ADDRESS_SESSIONS,
    Limit.PROVIDER_RATE: Limit.ADDRESS_RATE,
    Limit.PROVIDER_CONNECT_RATE: Limit.ADDRESS_CONNECT_RATE,
}


def _windows(before: RateWindows | None, rates: Sequence[Rate], *, spread: bool) -> RateWindows | None:
    if not rates:
        return None
    if before is None:
        return RateWindows(rates, spread=spread)
    before.configure(rates)
    return before


def _rates(windows: RateWindows) -> str:
    return ", ".join(rate_text(rate) for rate in windows.rates)
