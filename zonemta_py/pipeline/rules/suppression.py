"""The lines of suppression files: CSV with the columns ``entry``, ``reason``, ``until`` and ``scope``, or a line for each entry.

An entry is an address, or a domain (``@example.org`` or ``example.org``). ``until`` is the last day on which it
applies, ``scope`` a name: the entry applies only to plans of that scope. Lines that begin with ``#`` are comments, if the first
cell is not quoted. Without a header line the text after the first comma or tab is the reason, which may end in ``until 2027-05-20``.
Pure.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from zonemta_py.pipeline.rules.addresses import UNDECODED
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain
from zonemta_py.submit.recipients import ADDRESS_COLUMNS, BLANKS

COLUMNS = ("entry", "reason", "until")  # that ``suppress`` and ``segment`` write
ENTRY_COLUMNS = ("entry", *ADDRESS_COLUMNS, "domain")  # the first of them in a header has the entries
NO_REASON = "suppressed"
_UNTIL = re.compile(r",?\s*until (\d{4}-\d\d-\d\d)$")
_QUOTED_LOCAL = re.compile(r'("(?:[^"\\]|\\.)*"@[^,\t]*)[,\t]?(.*)')
_COMMENT = re.compile(r"\s#.*")


class SuppressionHeader(NamedTuple):
    """The ``column`` of the entries, None when the line is no header; and what separates the columns."""

    column: str | None
    delimiter: str


def header_of(line: str) -> SuppressionHeader:
    """What the first line of a file that is no comment says."""
    delimiter = next((mark for mark in "\t;" if mark in line and "," not in line), ",")
    cells = next(csv.reader([line], delimiter=delimiter), [])
    names = [cell.strip(BLANKS).lower() for cell in cells]
    return SuppressionHeader(next((name for name in ENTRY_COLUMNS if name in names), None), delimiter)


def has_entry(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    text = line.strip(BLANKS)
    return bool(text) and not text.startswith("#")


def split_line(line: str) -> tuple[str, str, str]:
    """Entry, reason and last day of a line without a header; ``""`` for what it lacks."""
    entry, rest = _split(line.strip(BLANKS))
    until = _UNTIL.search(rest)
    return entry, _UNTIL.sub("", rest), until[1] if until else ""


def _split(line: str) -> tuple[str, str]:
    """Entry and the rest. The entry may be a quoted cell, or an address with a quoted local part."""
    quoted = _QUOTED_LOCAL.fullmatch(line)
    if quoted:
        return quoted[1], quoted[2]
    if line.startswith('"'):
        try:
            cells = next(csv.reader([line]))
        except csv.Error:  # a cell of more than 128 KiB
            return line, ""
        return cells[0], ",".join(cells[1:])
    entry, _, reason = line.replace("\t", ",").partition(",")
    return _COMMENT.sub("", entry), reason


def entry_key(text: str) -> str:
    """The normal form of an address or domain in lower case. Raises AddressError."""
    if UNDECODED in text:
        raise AddressError("not valid UTF-8")
    text = text.strip(BLANKS)
    bare = text.removeprefix("@")
    if "@" in bare:
        return normalise(text).lower()
    if bare == text and "." not in text:
        raise AddressError("neither an address nor a domain; a domain without a dot is written @name")
    return normalise_domain(bare)


def suppression_lines(comment: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a suppression file with the columns COLUMNS."""
    yield f"# {comment}\n"
    yield f"{','.join(COLUMNS)}\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # an entry may begin with #
    for row in rows:
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
