"""What a zone knows about one destination: its open sessions, and whether it answers. Pure."""


class Destination:
    """``active`` workers are on it. After a failure to connect it rests until ``down_until_s``.

    While it is down, one worker at a time probes it; the first success ends that.
    """

    __slots__ = ("active", "down_until_s", "failing", "name", "reason")

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0
        self.failing = False
        self.down_until_s = 0.0
        self.reason = ""

    def may_start(self, now_s: float, most: int) -> bool:
        """Whether another worker may take its mail now."""
        if self.failing:
            return self.active == 0 and now_s >= self.down_until_s
        return self.active < most

    def failed(self, until_s: float, reason: str) -> None:
        """No session could be had; nobody tries before ``until_s``."""
        self.failing = True
        self.down_until_s = max(self.down_until_s, until_s)
        self.reason = reason

    def answered(self) -> bool:
        """A session was had. True when the destination had been failing."""
        was_failing, self.failing = self.failing, False
        self.reason = ""
        return was_failing
