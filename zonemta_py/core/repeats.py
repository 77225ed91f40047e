"""Log lines that may come by the thousand: the first of a kind is written, the others are counted for a minute."""

import asyncio
import logging
from collections.abc import Callable, Hashable

WINDOW_S = 60.0
KINDS_MAX = 50  # in a window; the lines of others are counted together


class RepeatedLines:
    """Writes to ``log``. Needs a running loop."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[Hashable, tuple[int, str, int]] = {}  # level, first text, repetitions
        self._others = 0
        self._timer: asyncio.TimerHandle | None = None

    def write(self, kind: Hashable, level: int, make_text: Callable[[], str]) -> None:
        """Write a line, unless one of its kind was written within the last minute: then its text is not made."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self.flush)
        known = self._counts.get(kind)
        if known is not None:
            self._counts[kind] = (*known[:2], known[2] + 1)
        elif len(self._counts) >= KINDS_MAX:
            self._others += 1
        else:
            text = make_text()
            self._counts[kind] = level, text, 0
            self._log.log(level, "%s", text)

    def flush(self) -> None:
        """Write how often lines were repeated, and begin anew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for level, text, count in counts.values():
            if count:
                self._log.log(level, "repeated %d more times within a minute: %s", count, text)
        if self._others:
            self._log.info("%d further messages were left out within a minute", self._others)
            self._others = 0
