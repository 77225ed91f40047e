"""What a zone knows about one destination: its open sessions, and whether it answers. Pure."""

CROWDED_S = 60.0  # how long a learned limit holds before one more session is tried


class Destination:
    """``active`` workers are on it, ``working`` of them hold a session; one may be ``starting``.

    Workers start one after the other, each when the one before has taken a lease: mail that comes
    in ones would wake twenty to fight for it.

    After a failure to connect it rests until ``down_until_s``; while it is down, one worker at a
    time probes it, and the first success ends that. A failure while others work is the peer's limit
    on sessions: it is learned, and held for CROWDED_S.
    """

    __slots__ = (
        "active",
        "down_until_s",
        "failing",
        "limit",
        "limit_until_s",
        "name",
        "reason",
        "starting",
        "working",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = 0
        self.working = 0
        self.starting = False
        self.limit = 0
        self.limit_until_s = 0.0
        self.failing = False
        self.down_until_s = 0.0
        self.reason = ""

    def may_start(self, now_s: float, most: int) -> bool:
        """Whether another worker may take its mail now."""
        if self.starting:
            return False
        if self.failing:
            return self.active == 0 and now_s >= self.down_until_s
        if now_s < self.limit_until_s:
            most = min(most, self.limit)
        return self.active < most

    def crowded(self, now_s: float) -> None:
        """The peer takes no session beside those that work."""
        self.limit = max(1, self.working)
        self.limit_until_s = now_s + CROWDED_S

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
