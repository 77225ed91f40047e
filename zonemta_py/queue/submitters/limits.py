"""Limits of what tenants, users and hosts submit: counted here, in the process of the queue, for all receivers.

States of a use: asked for ─▶ refused with a reply, or counted ─▶ forgotten, when it has left every window. A session counts from
``open_session`` until its claim is closed.

Invariants:

- A use counts completely, for each subject of the client and each limit, or not at all: a refusal counts nothing.
- There is no await between the question and the count, so sessions of all receivers together do not exceed a limit.
- Windows of an hour or more hold over a restart: each use writes what is used in its slot of the window, under
  ``meta/limit/NAME/LENGTH/SLOT/KIND/SUBJECT`` (length in ms, slot in 13 digits), in a batch before the message's own.
- After a reload, what was used continues to count under limits whose length of time has stayed, also with another number.
- Wrong passwords and logins are in memory and bounded; the process of the queue has those of all receivers.

Callers: ``Queue.limits`` of the queue's process, which receivers ask over their link; ``intake.users`` and ``intake.context`` use
``WrongPasswords`` and ``RecentLogins``.

Example: a tenant may send 100 messages in 1 h and has sent 100. The next one is answered 450 4.7.1 with the time from which on one
is accepted; one message to more recipients than a limit ever allows is answered 550 5.7.1.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from zonemta_py.config.tenants import ClientLimits, IntakeLimits, LimitRules, Subject
from zonemta_py.config.values import HOUR, Rate
from zonemta_py.core import clock
from zonemta_py.core.counters import SlidingWindow
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.commit import CommitFuture, GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.upkeep.cleanup import row_slices
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


SWEEP_EVERY_S = 3600.0


Windows = list[tuple[str, Rate, SlidingWindow]]
Kept = dict[tuple[Subject, str, int], SlidingWindow]  # by subject, name and length (ms)


class LimitedClient(NamedTuple):
    """Whose limits apply. ``client_ip`` is empty for a program."""

    tenant: str
    user: str
    client_ip: str


def client_of(origin: Origin) -> LimitedClient:
    """The client that submits mail of ``origin``; that of a program has no address."""
    return LimitedClient(origin.tenant, origin.user, origin.client_ip if origin.listener else "")


class Use(NamedTuple):
    """The amounts that are to be accepted. The names of the fields are those of ``IntakeLimits``."""

    sessions: int = 0
    messages: int = 0
    recipients: int = 0
    bytes: int = 0


SMALLEST = Use(messages=1, recipients=1, bytes=1)


class Charge(CommitFuture):
    """The answer to a use, once it is known: accepted and counted, or ``refusal`` is the reply.

    ``closed_ms``: until when the smallest message of this client is refused, too.
    """

    __slots__ = ("closed_ms", "refusal")

    def __init__(self) -> None:
        super().__init__()
        self.refusal = ""
        self.closed_ms = 0

    def answer(self, refusal: str, closed_ms: int) -> "Charge":
        """It is known now."""
        self.refusal, self.closed_ms = refusal, closed_ms
        self.finish()
        return self


class SessionClaim(Charge):
    """The answer to a session, once it is known: it counts among the open ones until ``close``, or ``refusal`` is the reply.

    ``close`` may be called before the answer is known, and twice.
    """

    __slots__ = ("_on_close",)

    def __init__(self, on_close: Callable[[], None]) -> None:
        super().__init__()
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        """The session has ended."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None and not self.refusal:
            on_close()


class IntakeLimiter:
    """Counts what is accepted. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._store = store
        self._commits = commits
        self._now = now
        self._rules = LimitRules({}, ClientLimits())
        self._windows: dict[Subject, Windows] = {}
        self._open: dict[Subject, int] = {}  # sessions, of those that have a limit of them

    def configure(self, rules: LimitRules) -> None:
        """Use other limits; what was used under a rate that stays continues to count."""
        kept = {
            (subject, name, _length_ms(rate)): window
            for subject, windows in self._windows.items()
            for name, rate, window in windows
        } or self._stored(rules)
        self._rules, self._windows = rules, {}
        for subject, _, _ in kept:
            limits = rules.limits_of(subject)
            if limits is not None and subject not in self._windows:
                self._windows[subject] = _made(limits, subject, kept)

    def _stored(self, rules: LimitRules) -> Kept:
        """The windows that an earlier run stored, of subjects that ``rules`` limit."""
        found: Kept = {}
        now_ms = self._now()
        for key, value in self._store.scan(keys.META_LIMIT, keys.end_of(keys.META_LIMIT)):
            name, length_ms, slot, kind, who = keys.parse_limit(key)
            subject = Subject(kind, who)
            if rules.limits_of(subject) is None:
                continue
            window = found.setdefault((subject, name, length_ms), SlidingWindow(0, length_ms))
            if window.counts(slot, now_ms):
                window.restore(slot, int(value))
        return found

    def _windows_of(self, client: LimitedClient) -> list[tuple[Subject, Windows]]:
        found = []
        for subject, limits in self._rules.of(*client):
            windows = self._windows.get(subject)
            if windows is None:
                windows = self._windows[subject] = _made(limits, subject, {})
            found.append((subject, windows))
        return found

    def closed(self, client: LimitedClient) -> str:
        """The reply to a message of any size; empty when one may be accepted."""
        return self._refusal(self._windows_of(client), SMALLEST, self._now())[0]

    def charge(self, client: LimitedClient, use: Use) -> Charge:
        """Count ``use`` unless it exceeds a limit."""
        now_ms, windows = self._now(), self._windows_of(client)
        refusal, _ = self._refusal(windows, use, now_ms)
        if refusal:
            closed, closed_ms = self._refusal(windows, SMALLEST, now_ms)
            return Charge().answer(closed if closed_ms else refusal, closed_ms)
        batch = WriteBatch()
        for subject, its_windows in windows:
            for name, rate, window in its_windows:
                amount = getattr(use, name)
                if not amount:
                    continue
                slot, used = window.add(now_ms, amount)
                if rate.per_s >= HOUR:
                    key = keys.limit_key(name, _length_ms(rate), slot, *subject)
                    batch.put(key, str(used).encode())
        if batch.ops:
            self._commits.submit(batch)
        return Charge().answer("", 0)

    def open_session(self, client: LimitedClient) -> SessionClaim:
        """Count a session of ``client`` that begins, unless there are as many as may be open at the same time."""
        limits = [(subject, limits.open_sessions) for subject, limits in self._rules.of(*client)]
        subjects = [subject for subject, most in limits if most is not None]
        claim = SessionClaim(lambda: self._close(subjects))
        for subject, most in limits:
            if most is not None and self._open.get(subject, 0) >= most:
                claim.answer(f"421 4.7.0 {subject} has {most} sessions open, try again later", 0)
                return claim
        for subject in subjects:
            self._open[subject] = self._open.get(subject, 0) + 1
        claim.answer("", 0)
        return claim

    def _close(self, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            self._open[subject] -= 1
            if not self._open[subject]:
                del self._open[subject]

    def _refusal(
        self, windows: Sequence[tuple[Subject, Windows]], use: Use, now_ms: int
    ) -> tuple[str, int]:
        """Why ``use`` is refused, and until when; empty and 0 when it is not. Of several limits the longest."""
        refusal, latest_ms = "", 0
        for subject, its_windows in windows:
            for name, rate, window in its_windows:
                amount = getattr(use, name)
                if amount > rate.events:
                    return f"550 5.7.1 {subject} may send {_shown(name, rate)}, this has {amount}", 0
                opens_ms = window.opens_ms(now_ms, amount) if amount else 0
                if opens_ms > latest_ms:
                    latest_ms = opens_ms
                    refusal = (
                        f"450 4.7.1 {subject} has sent {_shown(name, rate)}, again at {_time(opens_ms)}"
                    )
        return refusal, latest_ms

    def used(self, subject: Subject) -> list[dict[str, object]]:
        """The use of each limit of ``subject``, a row each; ``per_s`` is 0 for what is open now."""
        limits, now_ms = self._rules.limits_of(subject), self._now()
        if limits is None:
            return []
        windows = self._windows.get(subject) or _made(limits, subject, {})
        most, now_open = limits.open_sessions, self._open.get(subject, 0)
        found: list[dict[str, object]] = []
        if most is not None:
            found = [{"limit": "open_sessions", "of": most, "per_s": 0, "used": now_open}]
        return found + [
            {"limit": name, "of": rate.events, "per_s": rate.per_s, "used": window.used(now_ms)}
            for name, rate, window in windows
        ]

    async def run(self) -> None:
        """Forget every hour what no longer counts."""
        while True:
            now_ms = self._now()
            for subject, windows in list(self._windows.items()):
                if not any(window.used(now_ms) for _, _, window in windows):
                    del self._windows[subject]
            try:
                await self._delete_old(now_ms)
            except QueueCorrupt as exc:
                log.critical("old uses of limits are not removed, repair the queue: %s", exc)
            await asyncio.sleep(SWEEP_EVERY_S)

    async def _delete_old(self, now_ms: int) -> None:
        async for rows in row_slices(self._store, keys.META_LIMIT):
            batch = WriteBatch()
            for key, _ in rows:
                _, length_ms, slot, _, _ = keys.parse_limit(key)
                if not SlidingWindow(0, length_ms).counts(slot, now_ms):
                    batch.delete(key)
            if batch.ops:
                await self._commits.submit(batch)


def _made(limits: IntakeLimits, subject: Subject, kept: Kept) -> Windows:
    """The windows of ``subject``; those in ``kept`` get the number that is allowed now."""
    made = []
    for name, rate in limits.rates():
        window = SlidingWindow(rate.events, _length_ms(rate))
        before = kept.get((subject, name, _length_ms(rate)))
        if before is not None:
            window.copy_uses(before)
        made.append((name, rate, window))
    return made


def _length_ms(rate: Rate) -> int:
    return round(rate.per_s * 1000)


def _shown(name: str, rate: Rate) -> str:
    """``10000 messages in 1 h``."""
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if rate.per_s % seconds == 0:
            return f"{rate.events} {name} in {rate.per_s / seconds:.0f} {unit}"
    return f"{rate.events} {name} in {rate.per_s:g} s"


def _time(at_ms: int) -> str:
    """``at_ms``, or the next whole second, as RFC 3339 has it."""
    return f"{datetime.fromtimestamp(-(-at_ms // 1000), UTC):%Y-%m-%dT%H:%M:%SZ}"


# ---- Right and wrong passwords of the last minutes, known to all processes that accept mail. All in memory.

FAILURES_MAX = 10  # of one network in FAILURE_WINDOW_S
FAILURE_WINDOW_S = 600.0
NETWORKS_MAX = 10_000
RECENT_S = 86_400.0
RECENT_MAX = 10_000
REPORT_EVERY_S = 600.0


class WrongPasswords:
    """The wrong passwords of the last minutes, by the network that they came from.

    What has logged in from a network lately is counted by itself there (``of_login``). A receiver process gives
    ``report``, which is called with the network of each that it finds; the queue's process has all, and writes the
    line in the log when a network has too many.
    """

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self._report = report
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # by network, monotonic

    def count(self, network: str) -> int:
        """How many there were lately, at most FAILURES_MAX."""
        times = self._times.get(network)
        if times is None:
            return 0
        while times and times[0] <= clock.monotonic_s() - FAILURE_WINDOW_S:
            times.popleft()
        return len(times)

    def add(self, network: str) -> None:
        """One was found here."""
        self.learn(network)
        if self._report is not None:
            self._report(network)

    def learn(self, network: str) -> None:
        """One was found, here or by another process."""
        was_open = self.count(network) < FAILURES_MAX
        times = self._times.setdefault(network, deque(maxlen=FAILURES_MAX))
        times.append(clock.monotonic_s())
        if self._report is None and was_open and len(times) == FAILURES_MAX:
            log.warning(
                "too many wrong passwords from %s: others are refused for %d minutes",
                network,
                FAILURE_WINDOW_S / 60,
            )
        self._times.move_to_end(network)
        if len(self._times) > NETWORKS_MAX:
            self._times.popitem(last=False)


class RecentLogins:
    """Who has logged in from which network in the last day: users there are no strangers.

    A process gives ``report``, which is called with network and user of a login that the others may not know.
    """

    def __init__(self, report: Callable[[str, str], None] | None = None) -> None:
        self._report = report
        self._logins: OrderedDict[tuple[str, str], float] = OrderedDict()  # when last; the latest last
        self._networks: dict[str, int] = {}  # the number of their users above

    def add(self, network: str, user: str) -> None:
        """``user`` has logged in here."""
        before_s = self._logins.get((network, user))
        if before_s is not None and clock.monotonic_s() - before_s < REPORT_EVERY_S:
            return
        self.learn(network, user)
        if self._report is not None:
            self._report(network, user)

    def learn(self, network: str, user: str) -> None:
        """``user`` has logged in, here or at another process."""
        if (network, user) not in self._logins:
            self._networks[network] = self._networks.get(network, 0) + 1
        self._logins[network, user] = clock.monotonic_s()
        self._logins.move_to_end((network, user))
        while len(self._logins) > RECENT_MAX:
            self._forget(next(iter(self._logins)))

    def has(self, network: str, user: str) -> bool:
        """True if ``user`` has logged in from ``network`` lately."""
        self._expire()
        return (network, user) in self._logins

    def is_familiar(self, network: str) -> bool:
        """True if someone has logged in from ``network`` lately."""
        self._expire()
        return network in self._networks

    def all(self) -> list[tuple[str, str]]:
        """Networks and users, for a process that begins."""
        self._expire()
        return list(self._logins)

    def learn_all(self, logins: Iterable[tuple[str, str]]) -> None:
        """Learn the logins that another process knows."""
        for network, user in logins:
            self.learn(network, user)

    def _expire(self) -> None:
        limit_s = clock.monotonic_s() - RECENT_S
        while self._logins and next(iter(self._logins.values())) <= limit_s:
            self._forget(next(iter(self._logins)))

    def _forget(self, login: tuple[str, str]) -> None:
        del self._logins[login]
        network = login[0]
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]


def of_login(network: str, user: str) -> str:
    """Under which name WrongPasswords counts those of a user who has logged in from ``network`` lately."""
    return f"{network} {user}"
