"""What is under way between a provider and a source address, and which limit refuses more. Pure; times are ms."""

from collections.abc import Sequence
from typing import NamedTuple

from zonemta_py.config.plain import rate_text
from zonemta_py.config.units import Rate
from zonemta_py.schedule.constraint import Limit
from zonemta_py.schedule.controller import Pace, rate_of
from zonemta_py.schedule.rate_windows import UNTIL_EVENT, RateWindows

KEPT_MS = 60_000  # mail that wants an address takes another one if it has to wait longer, but for the end of a session


class Refusal(NamedTuple):
    """Which limit refuses, until when (ms; or UNTIL_EVENT), and why, as text.

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
        """Whether mail that wants this address takes another one; an operator's suspension may have no end."""
        if self.until_ms == UNTIL_EVENT:
            return self.limit is Limit.OPERATOR
        return self.until_ms > now_ms + KEPT_MS


class Ceiling:
    """What the controller allows at a provider from an address, below the limits. ``paused_ms``: nothing until then."""

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
    """What is under way between a provider and a source address; either is empty for the sum over all.

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
        """Whether anything may be refused here."""
        ceiling = self.ceiling
        return bool(
            self.sessions_max is not None or self.messages or self.connects or ceiling.paused_ms
            or ceiling.sessions is not None or ceiling.messages
        )  # fmt: skip

    def in_use(self, now_ms: int) -> bool:
        """Whether it has state that its limits do not say: what is under way, what was used, what is lowered."""
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
        """What refuses a message now; ``session``: in that of a further worker, which is ``new``, not of one that has it."""
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
