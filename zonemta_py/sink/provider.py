"""A mailbox provider with limits: its refusals, and an exact account of the attempts of its clients.

States of a client at a provider: free ─▶ blocked, by a limit or a test ─▶ free, after its time or ``unblock``.

Invariants:

- Every attempt over a limit is a violation, also where it was refused. Greylisting and refusals while a client is blocked are
  counted, but are not violations: a client cannot know of them before.
- Rates are exact: (now - period, now] has at most the allowed number of accepted events, in a period that ``slack`` shortens.
- Times are monotonic seconds and never decrease. A session takes a place from ``connect`` to ``close``, and once.

Callers: ``sink.server.LimitedSession``; tests read ``clients`` and ``violations``.

Example: with ``rate: [2/s]`` the third message within a second is refused, and is one violation of RATE.
"""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zonemta_py.config.values import Rate
from zonemta_py.sink.script import Step
from zonemta_py.sink.sink_limits import LimitName, SinkLimits

# ---- Times of events, and a rate over an exact sliding window.


class EventTimes:
    """Monotonic seconds, oldest first; ``times_s`` never decreases."""

    __slots__ = ("times_s",)

    def __init__(self) -> None:
        self.times_s = array("d")

    def __len__(self) -> int:
        return len(self.times_s)

    def add(self, now_s: float) -> None:
        """Note an event; ``now_s`` is not earlier than the last one."""
        self.times_s.append(now_s)

    def full(self, rate: Rate, now_s: float, slack_s: float = 0.0) -> bool:
        """True if (now - period, now] has ``rate.events`` events; ``slack_s`` shortens the period."""
        if len(self.times_s) < rate.events:
            return False
        return now_s - self.times_s[-rate.events] < rate.per_s - slack_s

    def most_within(self, period_s: float) -> int:
        """The greatest number of events in any (t - period, t]."""
        most = first = 0
        for last, at_s in enumerate(self.times_s):
            while at_s - self.times_s[first] >= period_s:
                first += 1
            most = max(most, last - first + 1)
        return most


# ---- The provider and its accounts.

_STEPS = tuple(Step)  # in the order of a dialogue


class SinkRefusal(NamedTuple):
    """A negative reply. ``closes``: the connection ends after it."""

    reply: str
    closes: bool


class Violation(NamedTuple):
    """An attempt over a limit."""

    at_s: float
    limit: LimitName
    client: str


class ActiveBlock(NamedTuple):
    """The end of the block of a client, and the reply to it."""

    until_s: float
    reply: str


@dataclass(slots=True)
class ClientAccount:
    """The account of one client address. ``refused`` counts replies; a reply may be for several violations."""

    accepted: EventTimes = field(default_factory=EventTimes)
    connected: EventTimes = field(default_factory=EventTimes)
    recipients: int = 0
    open_sessions: int = 0
    most_sessions: int = 0  # open at the same time
    violations: Counter[LimitName] = field(default_factory=Counter)
    refused: Counter[LimitName] = field(default_factory=Counter)
    active_block: ActiveBlock | None = None

    @property
    def messages(self) -> int:
        """The number of accepted messages."""
        return len(self.accepted)


class SinkProvider:
    """One provider. ``clients``: accounts by client address."""

    def __init__(self, limits: SinkLimits) -> None:
        self.limits = limits
        self.clients: dict[str, ClientAccount] = {}
        self.accepted = EventTimes()  # of all clients
        self.open_sessions = 0
        self.most_sessions = 0
        self.violations: list[Violation] = []
        self._first_tries: dict[tuple[str, str, str], float] = {}

    def block(self, client: str, reply: str | None = None, until_s: float = math.inf) -> None:
        """Refuse ``client`` until ``until_s`` or ``unblock``; ``reply``: instead of the configured one."""
        self.account(client).active_block = ActiveBlock(until_s, reply or self.limits.block.reply)

    def unblock(self, client: str) -> None:
        """End a block, whatever started it."""
        self.account(client).active_block = None

    def account(self, client: str) -> ClientAccount:
        """The account of a client address, made when it is first asked for."""
        found = self.clients.get(client)
        if found is None:
            found = self.clients[client] = ClientAccount()
        return found

    def crowded(self, client: str) -> bool:
        """True if a session of ``client`` would be one too many now."""
        return bool(self._exceeded_sessions(self.account(client)))

    def connect(self, client: str, now_s: float) -> "ProviderSession | SinkRefusal":
        """Open a session, or refuse it."""
        account = self.account(client)
        exceeded = self._exceeded_sessions(account)
        if any(
            account.connected.full(rate, now_s, self.limits.slack) for rate in self.limits.connect_rate
        ):
            exceeded.append(LimitName.CONNECT_RATE)
        session = ProviderSession(self, client, account)
        refusal = session.blocked(Step.CONNECT, now_s) or session.exceed(exceeded, now_s)
        if refusal is not None:
            return refusal._replace(closes=True)
        account.connected.add(now_s)
        account.open_sessions += 1
        account.most_sessions = max(account.most_sessions, account.open_sessions)
        self.open_sessions += 1
        self.most_sessions = max(self.most_sessions, self.open_sessions)
        return session

    def _exceeded_sessions(self, account: ClientAccount) -> list[LimitName]:
        limits = self.limits
        exceeded = []
        if (
            limits.sessions_per_address is not None
            and account.open_sessions >= limits.sessions_per_address
        ):
            exceeded.append(LimitName.SESSIONS_PER_ADDRESS)
        if limits.sessions is not None and self.open_sessions >= limits.sessions:
            exceeded.append(LimitName.SESSIONS)
        return exceeded

    def is_greylisted(self, client: str, sender: str, recipient: str, now_s: float) -> bool:
        """True if ``greylist`` has not passed since the first try, which this may be."""
        if self.limits.greylist is None:
            return False
        first_s = self._first_tries.setdefault((client, sender.lower(), recipient.lower()), now_s)
        return now_s - first_s < self.limits.greylist

    def as_row(self) -> dict[str, object]:
        """The accounts as a dictionary, for JSON, with the time of each accepted message."""
        return {
            "messages": len(self.accepted),
            "most_sessions": self.most_sessions,
            "most_within": _most_within(self.accepted, self.limits.rate_total),
            "violations": [[v.at_s, str(v.limit), v.client] for v in self.violations],
            "clients": {
                client: {
                    "messages": account.messages,
                    "recipients": account.recipients,
                    "sessions": len(account.connected),
                    "most_sessions": account.most_sessions,
                    "most_within": _most_within(account.accepted, self.limits.rate),
                    "violations": dict(account.violations),
                    "refused": dict(account.refused),
                    "accepted_s": account.accepted.times_s.tolist(),
                }
                for client, account in self.clients.items()
            },
        }

    def lines(self) -> list[str]:
        """A line for each client, for people."""
        return [
            f"{client}: {account.messages} messages, {account.most_sessions} sessions at the same time, "
            f"violations: {_counts(account.violations)}, refusals: {_counts(account.refused)}"
            for client, account in self.clients.items()
        ]


class ProviderSession:
    """One open session of a client."""

    def __init__(self, provider: SinkProvider, client: str, account: ClientAccount) -> None:
        self._provider = provider
        self._client = client
        self._account = account
        self._open = True
        self._messages = 0

    def decide(self, step: Step, sender: str, recipient: str, now_s: float) -> SinkRefusal | None:
        """The answer to a command or, at DOT, to a message; None: no limit is against it."""
        refusal = self.blocked(step, now_s)
        if refusal is not None:
            return refusal
        provider = self._provider
        if step is Step.MAIL:
            most = provider.limits.messages_per_session
            if most is not None and self._messages >= most:
                refusal = self.exceed([LimitName.MESSAGES_PER_SESSION], now_s)
        elif step is Step.RCPT:
            if provider.is_greylisted(self._client, sender, recipient, now_s):
                refusal = self._refuse(LimitName.GREYLIST)
        elif step is Step.DOT:
            refusal = self._decide_message(now_s)
        return refusal

    def _decide_message(self, now_s: float) -> SinkRefusal | None:
        limits, slack_s = self._provider.limits, self._provider.limits.slack
        mine, of_all = self._account.accepted, self._provider.accepted
        exceeded = []
        if limits.block.after is not None and mine.full(limits.block.after, now_s, slack_s):
            exceeded.append(LimitName.BLOCK)
            self._provider.block(self._client, until_s=now_s + limits.block.for_)
        if any(mine.full(rate, now_s, slack_s) for rate in limits.rate):
            exceeded.append(LimitName.RATE)
        if any(of_all.full(rate, now_s, slack_s) for rate in limits.rate_total):
            exceeded.append(LimitName.RATE_TOTAL)
        return self.exceed(exceeded, now_s)

    def accept(self, recipients: int, now_s: float) -> None:
        """Count an accepted message."""
        self._messages += 1
        self._account.recipients += recipients
        self._account.accepted.add(now_s)
        self._provider.accepted.add(now_s)

    def close(self) -> None:
        """Free the place of the session; a second call does nothing."""
        if self._open:
            self._open = False
            self._account.open_sessions -= 1
            self._provider.open_sessions -= 1

    def blocked(self, step: Step, now_s: float) -> SinkRefusal | None:
        active = self._account.active_block
        if active is None or _STEPS.index(step) < _STEPS.index(Step(self._provider.limits.block.at)):
            return None
        if now_s >= active.until_s:
            self._account.active_block = None
            return None
        self._account.refused[LimitName.BLOCKED] += 1
        return SinkRefusal(active.reply, active.reply.startswith("421"))

    def exceed(self, limits: Sequence[LimitName], now_s: float) -> SinkRefusal | None:
        """Note each limit that an attempt exceeds; the reply is for the first. None if there is none."""
        for limit in limits:
            self._account.violations[limit] += 1
            self._provider.violations.append(Violation(now_s, limit, self._client))
        return self._refuse(limits[0]) if limits else None

    def _refuse(self, limit: LimitName) -> SinkRefusal:
        self._account.refused[limit] += 1
        reply = self._provider.limits.reply(limit)
        return SinkRefusal(reply, limit is LimitName.MESSAGES_PER_SESSION or reply.startswith("421"))


def _most_within(times: EventTimes, rates: Sequence[Rate]) -> dict[str, int]:
    """The greatest number in any window, by the length of the window."""
    return {f"{rate.per_s:g}s": times.most_within(rate.per_s) for rate in rates}


def _counts(counter: Counter[LimitName]) -> str:
    return ", ".join(f"{limit} {count}" for limit, count in counter.items()) or "none"
