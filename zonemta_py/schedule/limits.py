"""A token bucket: how many messages a zone may send now. Pure; time is an argument in seconds."""

from zonemta_py.config.units import Rate


class TokenBucket:
    """Lets ``rate.events`` pass per ``rate.per_s``, evenly, with a burst of a tenth of a second's worth.

    It measures from the time a token was due and not from when it was taken, so a late caller
    does not lower the rate.
    """

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._interval_s = rate.per_s / rate.events
        self._burst_s = max(0.1, self._interval_s)
        self._next_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token is due; 0 when one is there."""
        return max(0.0, self._next_s - now_s)

    def take(self, now_s: float) -> bool:
        """Take a token if one is there."""
        if self._next_s > now_s:
            return False
        self._next_s = max(self._next_s, now_s - self._burst_s) + self._interval_s
        return True
