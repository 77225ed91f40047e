"""The only user of wall-clock time and timers.

Lower layers take ``now_ms`` or ``now_s`` as an argument; higher layers call this module, so that a test can
replace the clock.
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


# Seconds that never decrease; only differences have a meaning. Each message reads it a dozen times.
monotonic_s = time.monotonic


TIME_MAX_MS = (
    253_402_300_799_000  # the end of the year 9999, the last that ``datetime`` and ISO 8601 have
)


def utc(ms: int) -> datetime:
    """Unix milliseconds as an aware UTC time; what is later than TIME_MAX_MS is that."""
    return datetime.fromtimestamp(min(ms, TIME_MAX_MS) / 1000, UTC)


_MS = re.compile(r"\b\d{13}\b")


def with_times(words: str) -> str:
    """``words`` with the unix milliseconds in them as times."""
    return _MS.sub(lambda found: f"{utc(int(found[0])):%Y-%m-%d %H:%M:%S} UTC", words)


_mail_date: tuple[int, str] = (0, "")


def mail_date(ms: int) -> str:
    """RFC 5322 date of unix ``ms``; cached for one second, because thousands of messages use the same."""
    global _mail_date
    second = ms // 1000
    if _mail_date[0] != second:
        _mail_date = (second, format_datetime(utc(second * 1000)))
    return _mail_date[1]


async def wait_event(event: "asyncio.Event", at_most_s: float) -> bool:
    """Wait for ``event``; False after ``at_most_s`` without it.

    asyncio.wait_for before Python 3.12 may lose a cancellation that arrives with the event.
    """
    import asyncio  # loading it is a tenth of the start of a command

    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Deadline:
    """A time limit that is often moved and seldom reached.

    ``call_later`` for each command costs more than the command. This keeps one timer; when it fires before
    the limit, which was moved since, it is armed again.
    """

    __slots__ = ("_at", "_expired", "_fires_at", "_loop", "_timer")

    def __init__(self, loop: "asyncio.AbstractEventLoop", expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._at: float | None = None
        self._fires_at = inf  # the time of the timer; inf: there is none
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Set the limit to ``seconds`` from now."""
        self._at = at = self._loop.time() + seconds
        if at < self._fires_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at, self._timer = at, self._loop.call_at(at, self._fire)

    def clear(self) -> None:
        """Remove the limit; the timer stays armed."""
        self._at = None

    def cancel(self) -> None:
        """Remove the limit and the timer."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._fires_at, self._timer = inf, None

    def _fire(self) -> None:
        self._fires_at, self._timer = inf, None
        if self._at is None:
            return
        if self._loop.time() >= self._at:
            self._at = None
            self._expired()
        else:
            self._arm(self._at)
