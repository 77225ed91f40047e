"""Suppression files: CSV with the columns ``entry``, ``reason`` and ``until``, or a line for each entry.

An entry is an address, or a domain (``@example.org`` or ``example.org``). ``until`` is the last day on which it
applies. Lines that begin with ``#`` are comments, if the first cell is not quoted. Without a header line the text after the
first comma or tab is the reason, which may end in ``until 2027-05-20``. A bad line is counted and reported, and
otherwise ignored. Pure except for reading the files and the current date.
"""

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain
from zonemta_py.submit.recipients import ADDRESS_COLUMNS, BLANKS

BAD_LINES_MAX = 20  # that are reported one by one
COLUMNS = ("entry", "reason", "until")
ENTRY_COLUMNS = ("entry", *ADDRESS_COLUMNS, "domain")  # the first of them in a header has the entries
NO_REASON = "suppressed"
_UNTIL = re.compile(r",?\s*until (\d{4}-\d\d-\d\d)$")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_QUOTED_LOCAL = re.compile(r'("(?:[^"\\]|\\.)*"@[^,\t]*)[,\t]?(.*)')
_COMMENT = re.compile(r"\s#.*")


@dataclass(slots=True)
class SuppressionList:
    """``entries``: the reason by normalised address or domain in lower case.

    ``bad``: number of lines that are neither; ``bad_lines`` describes the first of them.
    ``expired``: number of lines whose last day is before ``today``.
    """

    today: date = date.min
    entries: dict[str, str] = field(default_factory=dict)
    bad: int = 0
    expired: int = 0
    bad_lines: list[str] = field(default_factory=list)

    def read(self, lines: Iterable[str], name: str) -> None:
        """Add the entries of a file; ``name`` is for messages."""
        numbered = ((number, line) for number, line in enumerate(lines, 1) if _has_entry(line))
        first = next(numbered, None)
        if first is None:
            return
        delimiter = next((mark for mark in "\t;" if mark in first[1] and "," not in first[1]), ",")
        header = [
            cell.strip(BLANKS).lower() for cell in next(csv.reader([first[1]], delimiter=delimiter))
        ]
        column = next((name for name in ENTRY_COLUMNS if name in header), None)
        if column is None:
            self.add(first[1], f"{name}:{first[0]}")
            for number, line in numbered:
                self.add(line, f"{name}:{number}")
            return
        for number, record in _records(numbered, header, delimiter):
            where = f"{name}:{number}"
            self.add_entry(
                record.get(column, ""), record.get("reason", ""), record.get("until", ""), where
            )

    def add(self, line: str, where: str) -> None:
        """Parse a line of a file without a header; ``where`` is its file and line number."""
        if not _has_entry(line):
            return
        entry, reason = _split(line.strip(BLANKS))
        until = _UNTIL.search(reason)
        self.add_entry(entry, _UNTIL.sub("", reason), until[1] if until else "", where)

    def add_entry(self, entry: str, reason: str, until: str, where: str) -> None:
        """Add an entry whose last day is ``until`` (ISO 8601, or ``""``)."""
        until = until.strip(BLANKS)
        try:
            key = entry_key(entry)
        except AddressError as exc:
            self._bad(f"{where}: '{entry[:100]}': {exc}")
            return
        if until and not _DAY.fullmatch(until):
            self._bad(f"{where}: until '{until[:100]}': expected a day such as 2027-05-20")
        elif until and until < self.today.isoformat():
            self.expired += 1
        else:
            self.entries.setdefault(key, reason.strip(BLANKS) or NO_REASON)

    def _bad(self, problem: str) -> None:
        self.bad += 1
        if len(self.bad_lines) < BAD_LINES_MAX:
            self.bad_lines.append(problem)


def entry_key(text: str) -> str:
    """The normal form of an address or domain in lower case. Raises AddressError."""
    text = text.strip(BLANKS)
    bare = text.removeprefix("@")
    if "@" in bare:
        return normalise(text).lower()
    if bare == text and "." not in text:
        raise AddressError("neither an address nor a domain; a domain without a dot is written @name")
    return normalise_domain(bare)


def _has_entry(line: str) -> bool:
    text = line.strip(BLANKS)
    return bool(text) and not text.startswith("#")


def _split(line: str) -> tuple[str, str]:
    """Entry and reason. The entry may be a quoted cell, or an address with a quoted local part."""
    quoted = _QUOTED_LOCAL.fullmatch(line)
    if quoted:
        return quoted[1], quoted[2]
    if line.startswith('"'):
        cells = next(csv.reader([line]))
        return cells[0], ",".join(cells[1:])
    entry, _, reason = line.replace("\t", ",").partition(",")
    return _COMMENT.sub("", entry), reason


def _records(
    numbered: Iterator[tuple[int, str]], header: list[str], delimiter: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows after a header, with the number of the line in which each ends."""
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in numbered:  # noqa: B007  # read below
            yield line

    for cells in csv.reader(lines(), delimiter=delimiter):
        yield number, dict(zip(header, cells, strict=False))


def read_suppression(paths: Iterable[Path]) -> SuppressionList:
    """The entries of all ``paths``. Raises LocalError for a file that cannot be read."""
    found = SuppressionList(clock.utc(clock.now_ms()).date())
    for path in paths:
        try:
            with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
                found.read(file, str(path))
        except OSError as exc:
            raise LocalError(f"{path}: {exc.strerror}") from exc
        except csv.Error as exc:
            raise LocalError(f"{path}: {exc}") from exc
    return found
