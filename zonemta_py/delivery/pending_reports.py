"""Reports that wait: failures of a message for a minute, reports to one receiver for the end of their hour.

What waits is in the queue (``bounce/`` and ``digest/`` keys); this is when it is due, and can be thrown away. Times
are monotonic seconds.
"""

import asyncio
import logging
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NamedTuple

from zonemta_py.core.repeats import RepeatedLines
from zonemta_py.queue.format.records import Note
from zonemta_py.smtp.dsn import RecipientReport, RecipientText

MINUTE_S = 60.0
HOUR_S = 3600.0
RECEIVERS_MAX = 50_000  # whose reports of this hour are counted

log = logging.getLogger(__name__)


def group_of(to: str, sender: str) -> str:
    """The group of the digests for a receiver: 16 hex digits."""
    return blake2b(f"{to}\n{sender}".encode(), digest_size=8).hexdigest()


class PreparedNote(NamedTuple):
    """What a report is going to say of a note."""

    note: Note
    report: RecipientReport
    text: RecipientText


class PendingReports:
    """``changed`` is set when something is due before all else. ``discarded``: log lines about reports that are not sent.

    ``prepared``: by message and index of the recipient, while its report is being composed.
    """

    def __init__(self) -> None:
        self.discarded = RepeatedLines(log)
        self.changed = asyncio.Event()
        self.prepared: dict[str, dict[int, PreparedNote]] = {}
        self._waiting: set[tuple[str, str]] = set()  # ("message", id) or ("digest", group)
        self._due: list[tuple[float, tuple[str, str]]] = []  # a heap of them
        self._counts: dict[str, tuple[float, int]] = {}  # by group: begin of the hour, reports

    def count(self, group: str, now_s: float) -> int:
        """Count a report to a receiver; returns how many there are in this hour."""
        began_s, count = self._counts.get(group, (now_s, 0))
        if now_s - began_s >= HOUR_S:
            began_s, count = now_s, 0
        elif not count and len(self._counts) >= RECEIVERS_MAX:
            self._counts.clear()
        self._counts[group] = (began_s, count + 1)
        return count + 1

    def add_notes(self, message: str, now_s: float) -> None:
        """Failures of ``message`` were noted: they are reported a minute after the first."""
        self._add(("message", message), now_s + MINUTE_S)

    def add_digest(self, group: str, now_s: float) -> None:
        """A report was put off: it is sent at the end of the hour, with the others of its receiver."""
        began_s, _ = self._counts.get(group, (now_s, 0))
        self._add(("digest", group), began_s + HOUR_S)

    def _add(self, what: tuple[str, str], due_s: float) -> None:
        if what in self._waiting:
            return
        self._waiting.add(what)
        heappush(self._due, (due_s, what))
        if self._due[0][1] == what:
            self.changed.set()

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something is due; None when nothing waits."""
        return max(0.0, self._due[0][0] - now_s) if self._due else None

    def take_due(self, now_s: float) -> list[tuple[str, str]]:
        """What is due, which is forgotten here: ("message", id) and ("digest", group)."""
        due = []
        while self._due and self._due[0][0] <= now_s:
            due.append(heappop(self._due)[1])
        self._waiting.difference_update(due)
        return due
