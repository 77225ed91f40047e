"""IP addresses that do not answer: after two connect timeouts an address is skipped for about an hour. Pure.

Kept in memory only: after a restart every address is tried again. Source: qmail's tcpto.
"""

from collections.abc import Callable
from dataclasses import dataclass

TIMEOUTS_ENOUGH = 2
APART_S = 120.0  # minimum time between two timeouts that both count
SKIP_S = 3600.0
SKIP_SPREAD_S = 1800.0  # addresses that failed together are not tried together again
ADDRESSES_MAX = 10_000


@dataclass(slots=True)
class _Entry:
    """``timeouts`` in a row, the last one at ``last_s``; the address is skipped for ``skip_s`` after it."""

    timeouts: int
    last_s: float
    skip_s: float


def _ignore(ip: str | None) -> None:
    pass


class UnreachableHosts:
    """Connect timeouts by IP address. ``now_s`` is monotonic time.

    ``on_clear`` is called with the argument of every ``clear``.
    """

    def __init__(self, on_clear: Callable[[str | None], None] = _ignore) -> None:
        self._entries: dict[str, _Entry] = {}
        self._on_clear = on_clear

    def __contains__(self, ip: str) -> bool:
        return ip in self._entries

    def timed_out(self, ip: str, now_s: float, spread: float) -> None:
        """Record a connect timeout. ``spread``, 0 to 1, is the fraction of SKIP_SPREAD_S to add."""
        entry = self._entries.pop(ip, None)
        if entry is None:
            entry = _Entry(0, now_s - APART_S, 0)
            if len(self._entries) >= ADDRESSES_MAX:
                del self._entries[next(iter(self._entries))]
        if now_s - entry.last_s >= APART_S:
            entry.timeouts += 1
            entry.last_s = now_s
            entry.skip_s = SKIP_S + spread * SKIP_SPREAD_S
        self._entries[ip] = entry

    def answered(self, ip: str) -> None:
        """Record that the host answered, even by a refusal."""
        self._entries.pop(ip, None)

    def skipped_s(self, ip: str, now_s: float) -> float:
        """Seconds for which ``ip`` is still skipped; 0 when it may be tried."""
        entry = self._entries.get(ip)
        if entry is None or entry.timeouts < TIMEOUTS_ENOUGH:
            return 0.0
        return max(0.0, entry.last_s + entry.skip_s - now_s)

    def rows(self, now_s: float) -> list[dict[str, object]]:
        """Every address with a timeout, as rows of ``queue unreachable``."""
        return [
            {
                "ip": ip,
                "timeouts": entry.timeouts,
                "last_s": round(now_s - entry.last_s),
                "rests_s": round(self.skipped_s(ip, now_s)),
            }
            for ip, entry in self._entries.items()
        ]

    def clear(self, ip: str | None = None) -> int:
        """Forget ``ip``, or every address; returns how many."""
        self._on_clear(ip)
        if ip is not None:
            return int(self._entries.pop(ip, None) is not None)
        count = len(self._entries)
        self._entries.clear()
        return count
