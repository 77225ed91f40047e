"""The times of events, and whether a rate allows one more: an exact sliding window."""

from array import array

from zonemta_py.config.units import Rate


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
        """Whether (now - period, now] has ``rate.events`` events; ``slack_s`` shortens the period."""
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
