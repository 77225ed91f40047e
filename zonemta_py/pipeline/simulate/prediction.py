"""The mail and the peers that a simulated delivery is given, and the prediction that it makes. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from zonemta_py.core.model import PathKey
from zonemta_py.egress.controller import ShapingChange

ATTEMPTS_MAX = 5  # later attempts are treated as this one
SHARES = (0.5, 0.95, 0.99)
LIMITS = ("rate", "connections", "connections_per_domain")
MINUTE_S, DAY_MS = 60.0, 86_400_000


@dataclass(frozen=True, slots=True)
class PeerModel:
    """How a destination answers.

    ``times_s``: evenly spaced quantiles of the time of a transaction. ``deferred`` and ``bounced``: the share of
    recipients, by attempt, from the first; of those to which the reply did not speak of the sender.
    """

    times_s: Sequence[float]
    deferred: Sequence[float] = (0.0,)
    bounced: Sequence[float] = (0.0,)


@dataclass(frozen=True, slots=True)
class SimulatedMessage:
    """The recipients of one message at one destination."""

    arrival_s: float
    destination: str
    recipients: int
    zone: str = "default"


@dataclass(slots=True)
class PathUse:
    """Mail that a zone sent from an address to a provider; times are from the first arrival.

    ``refused``: recipients to which the reply spoke of the sender. ``wait_max_s``: from when a message was ready until its
    transaction. ``by_day``: recipients on each day of UTC, counted from 1970-01-01.
    """

    transactions: int = 0
    recipients: int = 0
    refused: int = 0
    wait_max_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    minute_max: int = 0  # of transactions
    by_day: Counter[int] = field(default_factory=Counter)
    _minute: int = -1
    _in_minute: int = 0

    def sent(self, recipients: int, wait_s: float, now_s: float, now_ms: int) -> None:
        """Count a transaction that begins; ``wait_s``: since its message was ready."""
        if not self.transactions:
            self.first_s = now_s
        self.last_s = now_s
        self.transactions += 1
        self.recipients += recipients
        self.wait_max_s = max(self.wait_max_s, wait_s)
        self.by_day[now_ms // DAY_MS] += recipients
        minute = int(now_s // MINUTE_S)
        self._in_minute = self._in_minute + 1 if minute == self._minute else 1
        self._minute = minute
        self.minute_max = max(self.minute_max, self._in_minute)

    @property
    def per_s(self) -> float:
        """Transactions a second, from the first to the last; of less than a second, those of a second."""
        return self.transactions / max(1.0, self.last_s - self.first_s)


class PathLimits:
    """The limits that bound on each path from an address to a provider, for how long, and the changes of shaping there."""

    def __init__(self) -> None:
        self.limited_s: dict[PathKey, dict[str, float]] = {}
        self.changes: dict[PathKey, list[ShapingChange]] = {}
        self._bound: dict[PathKey, tuple[str, float]] = {}
        self._by_provider: dict[str, set[PathKey]] = {}

    def bind(self, key: PathKey, limit: str, now_s: float) -> None:
        """Count the time from now on for ``limit``, for which mail waits."""
        bound = self._bound.get(key)
        if bound is None or bound[0] != limit:
            self.free(key, now_s)
            self._bound[key] = (limit, now_s)
            self._by_provider.setdefault(key[0], set()).add(key)

    def free(self, key: PathKey, now_s: float) -> None:
        """Mail is sent: add the time for which a limit bound the path."""
        bound = self._bound.pop(key, None)
        if bound is not None:
            limited_s = self.limited_s.setdefault(key, {})
            limited_s[bound[0]] = limited_s.get(bound[0], 0.0) + now_s - bound[1]

    def free_provider(self, provider: str, now_s: float) -> None:
        """Nothing waits for ``provider`` any more."""
        for key in self._by_provider.pop(provider, ()):
            self.free(key, now_s)

    def changed(self, change: ShapingChange) -> None:
        """A pace, a pool or a schedule has changed."""
        self.changes.setdefault((change.provider, change.address), []).append(change)


@dataclass(slots=True)
class Prediction:
    """The result of a zone; times are from the first arrival. ``limited_s``: how long each limit held mail back."""

    delivered: int = 0
    bounced: int = 0
    expired: int = 0
    held: int = 0  # by a rule of shaping
    deferrals: int = 0
    transactions: int = 0
    completed_s: float = 0.0
    backlog_peak: int = 0
    quantiles_s: tuple[float, ...] = ()
    limited_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LIMITS, 0.0))
    backlog: list[int] = field(default_factory=list)  # waiting recipients, maximum of each minute
    paths: dict[PathKey, PathUse] = field(default_factory=dict)


def share_at(shares: Sequence[float], attempt: int) -> float:
    """The share of recipients at an attempt, the first is 1; later ones are as the last that is known."""
    return shares[min(attempt, len(shares)) - 1] if shares else 0.0


def quantiles(ages: list[tuple[float, int]]) -> tuple[float, ...]:
    """The quantiles SHARES of ``ages``: pairs of age and number of recipients."""
    total, seen = sum(count for _, count in ages), 0
    found: list[float] = []
    ranks = [share * total for share in SHARES]
    for age_s, count in sorted(ages):
        seen += count
        while len(found) < len(ranks) and seen >= ranks[len(found)]:
            found.append(age_s)
    return tuple(found)
