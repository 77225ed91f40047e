"""Addresses that do not answer: two timeouts, and an address is left alone for about an hour. Pure.

In memory only: a restart tries everything again. Source: qmail's tcpto.
"""

from collections.abc import Callable
from dataclasses import dataclass

TIMEOUTS_ENOUGH = 2
APART_S = 120.0  # a timeout counts again only so long after the last one
REST_S = 3600.0
REST_SPREAD_S = 1800.0  # so that addresses that died together are not tried together
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class _Entry:
    """``timeouts`` in a row, the last one at ``last_s``; ``rest_s`` is how long it is left alone."""

    timeouts: int
    last_s: float
    rest_s: float


class UnreachableHosts:
    """Connect timeouts by IP address. ``now_s`` is monotonic."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.cleared: Callable[[str | None], None] = lambda ip: None  # others who know them are told

    def __contains__(self, ip: str) -> bool:
        return ip in self._entries

    def timed_out(self, ip: str, now_s: float, spread: float) -> None:
        """A connection attempt found nobody. ``spread``: 0 to 1, of REST_SPREAD_S."""
        entry = self._entries.pop(ip, None)
        if entry is None:
            entry = _Entry(0, now_s - APART_S, 0)
            if len(self._entries) >= ADDRESSES_MAX:
                del self._entries[next(iter(self._entries))]
        if now_s - entry.last_s >= APART_S:
            entry.timeouts += 1
            entry.last_s = now_s
            entry.rest_s = REST_S + spread * REST_SPREAD_S
        self._entries[ip] = entry

    def answered(self, ip: str) -> None:
        """Somebody is there, whatever they said."""
        self._entries.pop(ip, None)

    def rests(self, ip: str, now_s: float) -> float:
        """Seconds for which ``ip`` is still left alone; 0 when it may be tried."""
        entry = self._entries.get(ip)
        if entry is None or entry.timeouts < TIMEOUTS_ENOUGH:
            return 0.0
        return max(0.0, entry.last_s + entry.rest_s - now_s)

    def rows(self, now_s: float) -> list[dict[str, object]]:
        """Every address with a timeout, for an operator."""
        return [
            {
                "ip": ip,
                "timeouts": entry.timeouts,
                "last_s": round(now_s - entry.last_s),
                "rests_s": round(self.rests(ip, now_s)),
            }
            for ip, entry in self._entries.items()
        ]

    def clear(self, ip: str | None = None) -> int:
        """Forget ``ip``, or all; returns how many."""
        self.cleared(ip)
        if ip is not None:
            return int(self._entries.pop(ip, None) is not None)
        count = len(self._entries)
        self._entries.clear()
        return count
