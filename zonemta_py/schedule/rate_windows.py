"""How many messages, or sessions, may begin now: several rates that all hold. Pure; times are ms.

A rate holds exactly at the receiver, in any period of its length (decision 97): what was granted counts as used from
the grant on, and leaves the window its length after it was answered. An answer that takes longer than half a second
and a tenth of the shortest period counts as given by then: a slow peer must not lower the rate for long.

Messages are also spread over the period (decision 109): a window alone would let all of them begin at its start.
"""

from collections import deque
from collections.abc import Sequence
from math import ceil

from zonemta_py.config.units import Rate
from zonemta_py.core.sliding_window import SlidingWindow

ANSWER_MIN_MS = 500
STORED_S = 60
UNTIL_EVENT = -1  # in place of a time in ms: until something happens, such as the end of a session
SPREAD_S = 60  # rates with a period of at most this are spread, if they have
SPREAD_MIN = 10  # as many events; so that what was missed is made up for,
FASTER = 1.25  # times as fast as the rate,
BURST_MS = 100  # and so much of it at once


class RateUse:
    """One message or session that was granted. ``sent_ms`` 0: it has not begun; ``counted``: its time runs."""

    sent_ms = 0
    counted = False


class RateWindows:
    """The windows of ``rates``; ``stored`` are those whose use holds over a restart: of STORED_S and more.

    ``spread``: what is granted is spread over the periods.
    """

    __slots__ = (
        "_answer_ms", "_granted", "_interval_ms", "_sent", "_spread", "_spread_until_ms", "_stored", "_underway",
        "rates", "windows",
    )  # fmt: skip

    def __init__(self, rates: Sequence[Rate], *, spread: bool = False) -> None:
        self.rates: tuple[Rate, ...] = ()
        self._spread = spread
        self._interval_ms = 0.0  # between two; 0: any
        self._spread_until_ms = 0.0  # where the last one would be if they came at this interval
        self.windows: list[SlidingWindow] = []
        self._granted = 0  # that have not begun
        self._underway = 0  # that have begun and have no answer
        self._sent: deque[RateUse] = deque()
        self.configure(rates)

    def configure(self, rates: Sequence[Rate]) -> None:
        """Use other rates, at least one; what was used continues to count, as far back as the periods of before."""
        before = {rate.per_s: window for rate, window in zip(self.rates, self.windows, strict=True)}
        self.rates = tuple(rates)
        self.windows = [SlidingWindow(rate.events, round(rate.per_s * 1000)) for rate in rates]
        self._stored = [
            (round(rate.per_s * 1000), window)
            for rate, window in zip(self.rates, self.windows, strict=True)
            if rate.per_s >= STORED_S
        ]
        spread = [rate for rate in rates if rate.per_s <= SPREAD_S and rate.events >= SPREAD_MIN]
        if self._spread:
            intervals_ms = (rate.per_s * 1000 / (rate.events * FASTER) for rate in spread)
            self._interval_ms = max(intervals_ms, default=0.0)
        self._answer_ms = max(ANSWER_MIN_MS, round(min(rate.per_s for rate in rates) * 100))
        for rate, window in zip(self.rates, self.windows, strict=True):
            if rate.per_s in before:
                window.copy_uses(before[rate.per_s])
            elif before:
                longer = [per_s for per_s in before if per_s > rate.per_s]
                window.take_over(before[min(longer) if longer else max(before)])

    def wait_ms(self, now_ms: int) -> int:
        """0: one may begin; else when that is to be asked again (unix ms)."""
        sent = self._sent
        if sent and sent[0].sent_ms + self._answer_ms <= now_ms:
            self._expire(now_ms)
        wanted = self._granted + self._underway + 1
        for window in self.windows:
            if window.total + wanted > window.limit:
                return self._opens_ms(now_ms)
        if self._interval_ms and self._spread_until_ms - now_ms > BURST_MS:
            return ceil(self._spread_until_ms) - BURST_MS // 2  # several at once: fewer times to wake up
        return 0

    def _opens_ms(self, now_ms: int) -> int:
        self._expire(now_ms)
        held = self._granted + self._underway
        latest_ms = 0
        for window in self.windows:
            if window.used(now_ms) + held < window.limit:
                continue
            if held >= window.limit:
                # What has not begun yet counts as given when it has begun and that time is over.
                return (self._sent[0].sent_ms if self._sent else now_ms) + self._answer_ms
            latest_ms = max(latest_ms, window.opens_ms(now_ms, held + 1), now_ms + 1)
        return latest_ms

    def grant(self, now_ms: int) -> RateUse:
        """One begins soon; ``wait_ms`` was 0."""
        self._granted += 1
        if self._interval_ms:
            from_ms = self._spread_until_ms
            self._spread_until_ms = (from_ms if from_ms > now_ms else now_ms) + self._interval_ms
        return RateUse()

    def cancel(self, use: RateUse) -> None:
        """It does not begin."""
        self._granted -= 1
        self._spread_until_ms -= self._interval_ms

    def begin(self, use: RateUse, now_ms: int) -> None:
        """It begins now."""
        self._granted -= 1
        self._underway += 1
        use.sent_ms = now_ms
        self._sent.append(use)

    def end(self, use: RateUse, now_ms: int) -> list[tuple[int, int, int]]:
        """It has its answer. Returns (length in ms, slot, use of the slot) of the windows that are stored."""
        sent = self._sent
        if sent and sent[0] is use:
            sent.popleft()  # answers come in the order of the messages, mostly
        if not use.counted:
            use.counted = True
            self._underway -= 1
            for window in self.windows:
                window.add(now_ms, 1)
        if sent and (sent[0].counted or sent[0].sent_ms + self._answer_ms <= now_ms):
            self._expire(now_ms)
        if not self._stored:
            return []
        return [
            (length_ms, *last)
            for length_ms, window in self._stored
            if (last := window.last()) is not None
        ]

    def _count(self, use: RateUse, now_ms: int) -> None:
        use.counted = True
        self._underway -= 1
        for window in self.windows:
            window.add(now_ms, 1)

    def _expire(self, now_ms: int) -> None:
        sent = self._sent
        while sent and (sent[0].counted or sent[0].sent_ms + self._answer_ms <= now_ms):
            use = sent.popleft()
            if not use.counted:
                self._count(use, now_ms)

    def restore(self, length_ms: int, slot: int, used: int, now_ms: int) -> None:
        """Count what an earlier run stored."""
        for rate, window in zip(self.rates, self.windows, strict=True):
            if round(rate.per_s * 1000) == length_ms and window.counts(slot, now_ms):
                window.restore(slot, used)

    def in_use(self, now_ms: int) -> bool:
        """Whether anything that was granted counts."""
        self._expire(now_ms)
        return bool(self._granted or self._underway or any(each.used(now_ms) for each in self.windows))

    def used(self, now_ms: int) -> list[tuple[Rate, int]]:
        """What is used of each rate."""
        self._expire(now_ms)
        held = self._granted + self._underway
        return [
            (rate, window.used(now_ms) + held)
            for rate, window in zip(self.rates, self.windows, strict=True)
        ]
