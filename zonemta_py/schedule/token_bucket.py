"""How much a zone may send now. Pure; times are monotonic seconds."""

from zonemta_py.config.units import Rate

BURST_S = 0.1
LONG_S = 3600.0  # rates for periods from here on are kept over a restart
AHEAD_S = 10.0  # how long a message that has a session may wait for its token


class TokenBucket:
    """``rate.events`` per ``rate.per_s`` seconds, evenly, with bursts of BURST_S.

    Intervals start when a token was due and not when it was taken, so a late caller does not
    lower the rate.
    """

    def __init__(self, rate: Rate, now_s: float, due_in_s: float = 0.0) -> None:
        """``due_in_s``: when the first token is due, at most one interval from now."""
        self._next_s = now_s + due_in_s
        self.configure(rate, now_s)

    def configure(self, rate: Rate, now_s: float) -> None:
        """Use another rate from now on. A token that was taken stays taken."""
        self.is_long = rate.per_s >= LONG_S
        self._interval_s = rate.per_s / rate.events
        self._burst_s = max(BURST_S, self._interval_s)
        self._next_s = min(self._next_s, now_s + self._interval_s)

    @property
    def due_s(self) -> float:
        """When the next token is due."""
        return self._next_s

    @property
    def ahead_max(self) -> int:
        """How many messages may look for a session at the same time: their tokens are due within AHEAD_S."""
        return 1 + int(AHEAD_S / self._interval_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is available; 0 when one is."""
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is available; returns whether it was."""
        if self._next_s > now_s:
            return False
        self.reserve(now_s)
        return True

    def reserve(self, now_s: float) -> float:
        """Take the next token; returns the seconds until it is due."""
        due_s = max(self._next_s, now_s - self._burst_s)
        self._next_s = due_s + self._interval_s
        return max(0.0, due_s - now_s)
