"""IP addresses that do not answer: after two connect timeouts an address is skipped for a while. Pure.

By source address, because a network may drop the packets of one of ours. Kept in memory only: after a
restart every address is tried again. Source: qmail's tcpto.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zonemta_py.config.zones import Retry
from zonemta_py.schedule.retry import RetryContext, make_policy, next_attempt

TIMEOUTS_ENOUGH = 2
APART_S = 120.0  # minimum time between two timeouts that both count
SKIP_MAX_S = 3600.0
SPREAD = 0.5  # part of the time that is added at random: addresses that failed together are not tried together again
ADDRESSES_MAX = 10_000
DESTINATIONS_MAX = 20  # remembered for an address; one with more belongs to all
LADDER_STEPS = 12


class AddressPair(NamedTuple):
    """Both ends of a connection; ``source`` is empty when the system chooses it.

    A firewall may drop the packets to one port and not those to another one.
    """

    source: str
    ip: str
    port: int = 25


def skip_times_s(retry: Retry) -> tuple[float, ...]:
    """How long an address is skipped after its first timeout in a row, its second, and so on: as long as mail waits.

    The delays of the zone's retry policy, SKIP_MAX_S at most; those of the default for a function.
    """
    if retry.policy in ("function", "backoff"):
        retry = Retry()
    policy, end_ms = make_policy(retry), 10**12
    due_ms = [
        next_attempt(policy, RetryContext(0, attempts, 0, end_ms), 0) or end_ms
        for attempts in range(1, LADDER_STEPS + 1)
    ]
    return tuple(min(SKIP_MAX_S, due / 1000) for due in due_ms)


@dataclass(slots=True)
class _Entry:
    """``timeouts`` in a row, the last one at ``last_s``; the address is skipped for ``skip_s`` after it."""

    timeouts: int
    last_s: float
    skip_s: float = 0.0
    destinations: set[str] = field(default_factory=set)

    def concerns(self, destination: str) -> bool:
        return destination in self.destinations or len(self.destinations) >= DESTINATIONS_MAX


def _ignore(ip: str | None, destination: str | None) -> None:
    pass


class UnreachableHosts:
    """Connect timeouts by addresses. ``now_s`` is monotonic time.

    ``on_clear`` is called with the arguments of every ``clear``.
    """

    def __init__(self, on_clear: Callable[[str | None, str | None], None] = _ignore) -> None:
        self._entries: dict[AddressPair, _Entry] = {}
        self._on_clear = on_clear

    def __contains__(self, pair: AddressPair) -> bool:
        return pair in self._entries

    def timed_out(
        self, pair: AddressPair, destination: str, now_s: float, times_s: Sequence[float], spread: float
    ) -> float:
        """Record a connect timeout; returns for how long the address would be skipped after it.

        ``times_s``: see ``skip_times_s``. ``spread``, 0 to 1, is the fraction of SPREAD to add.
        """
        entry = self._entries.get(pair)
        timeouts = 1 if entry is None else entry.timeouts + 1
        skip_s = times_s[min(timeouts, len(times_s)) - 1] * (1 + spread * SPREAD)
        self.apply(pair, destination, now_s, skip_s)
        return skip_s

    def apply(self, pair: AddressPair, destination: str, now_s: float, skip_s: float) -> None:
        """Record a connect timeout, after which the address is skipped for ``skip_s``."""
        entry = self._entries.pop(pair, None)
        if entry is None:
            entry = _Entry(0, now_s - APART_S)
            if len(self._entries) >= ADDRESSES_MAX:
                del self._entries[next(iter(self._entries))]
        if now_s - entry.last_s >= APART_S:
            entry.timeouts += 1
            entry.last_s = now_s
            entry.skip_s = skip_s
        if len(entry.destinations) < DESTINATIONS_MAX:
            entry.destinations.add(destination)
        self._entries[pair] = entry

    def answered(self, pair: AddressPair) -> None:
        """Record that the host answered, even by a refusal."""
        self._entries.pop(pair, None)

    def skipped_s(self, pair: AddressPair, now_s: float) -> float:
        """Seconds for which the address is still skipped; 0 when it may be tried."""
        entry = self._entries.get(pair)
        if entry is None or entry.timeouts < TIMEOUTS_ENOUGH:
            return 0.0
        return max(0.0, entry.last_s + entry.skip_s - now_s)

    def rows(self, now_s: float) -> list[dict[str, object]]:
        """Every address with a timeout, as rows of ``queue unreachable``."""
        return [
            {
                "ip": pair.ip,
                "port": pair.port,
                "source": pair.source,
                "timeouts": entry.timeouts,
                "last_s": round(now_s - entry.last_s),
                "rests_s": round(self.skipped_s(pair, now_s)),
            }
            for pair, entry in self._entries.items()
        ]

    def clear(self, ip: str | None = None, destination: str | None = None) -> int:
        """Forget ``ip``, what concerns ``destination``, or every address; returns how many IP addresses."""
        self._on_clear(ip, destination)
        return self._forget(
            pair
            for pair, entry in self._entries.items()
            if ip in (None, pair.ip) and (destination is None or entry.concerns(destination))
        )

    def _forget(self, pairs: Iterable[AddressPair]) -> int:
        found = list(pairs)
        for pair in found:
            del self._entries[pair]
        return len({pair.ip for pair in found})
