"""Suppression files: an address, or a whole domain (``@example.org`` or ``example.org``), on a line.

``#`` begins a comment; what follows a comma or a tab is the reason, at whose end ``until 2027-05-20`` may
stand: the last day the line counts. A line that is neither is counted and shown, and costs nothing
else. Pure but for reading the file and the day.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain

SHOWN = 20
_UNTIL = re.compile(r",?\s*until (\d{4}-\d\d-\d\d)$")


@dataclass(slots=True)
class Suppression:
    """``entries``: normalised address or domain, and the reason. ``bad``: lines that are neither.

    ``expired``: lines whose last day is before ``today``.
    """

    today: date = date.min

    entries: dict[str, str] = field(default_factory=dict)
    bad: int = 0
    expired: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, line: str, where: str) -> None:
        """Take a line."""
        text = line.partition("#")[0].strip()
        if not text:
            return
        entry, _, reason = text.replace("\t", ",").partition(",")
        entry = entry.strip()
        try:
            bare = entry.lstrip("@")
            key = normalise(entry) if "@" in bare else normalise_domain(bare)
        except AddressError as exc:
            self.bad += 1
            if len(self.shown) < SHOWN:
                self.shown.append(f"{where}: '{entry[:100]}': {exc}")
            return
        until = _UNTIL.search(reason)
        if until and until[1] < self.today.isoformat():
            self.expired += 1
            return
        reason = _UNTIL.sub("", reason).strip()
        self.entries.setdefault(key, reason or "suppressed")


def read_suppression(paths: Iterator[Path]) -> Suppression:
    """All of ``paths`` together. Raises LocalError for a file that cannot be read."""
    found = Suppression(clock.utc(clock.now_ms()).date())
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    found.add(line, f"{path}:{number}")
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
    return found
