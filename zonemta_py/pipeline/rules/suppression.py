"""Suppression files: one address, or domain (``@example.org`` or ``example.org``), on each line.

``#`` begins a comment. The text after a comma or tab is the reason; it may end in ``until 2027-05-20``,
the last day on which the line applies. A bad line is counted and reported, and otherwise ignored. Pure except for
reading the files and the current date.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain

BAD_LINES_MAX = 20  # that are reported one by one
_UNTIL = re.compile(r",?\s*until (\d{4}-\d\d-\d\d)$")


@dataclass(slots=True)
class SuppressionList:
    """``entries``: the reason by normalised address or domain.

    ``bad``: number of lines that are neither; ``bad_lines`` describes the first of them.
    ``expired``: number of lines whose last day is before ``today``.
    """

    today: date = date.min
    entries: dict[str, str] = field(default_factory=dict)
    bad: int = 0
    expired: int = 0
    bad_lines: list[str] = field(default_factory=list)

    def add(self, line: str, where: str) -> None:
        """Parse a line; ``where`` is its file and line number."""
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
            if len(self.bad_lines) < BAD_LINES_MAX:
                self.bad_lines.append(f"{where}: '{entry[:100]}': {exc}")
            return
        until = _UNTIL.search(reason)
        if until and until[1] < self.today.isoformat():
            self.expired += 1
            return
        reason = _UNTIL.sub("", reason).strip()
        self.entries.setdefault(key, reason or "suppressed")


def read_suppression(paths: Iterable[Path]) -> SuppressionList:
    """The entries of all ``paths``. Raises LocalError for a file that cannot be read."""
    found = SuppressionList(clock.utc(clock.now_ms()).date())
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    found.add(line, f"{path}:{number}")
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
    return found
