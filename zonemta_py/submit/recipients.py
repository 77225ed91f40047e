"""A list of recipients, read one row at a time: CSV with a header line, or JSON lines.

The address is the column ``email`` (or ``address``, or ``recipient``); every column is a merge field.
"""

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.smtp.address import AddressError, normalise

ADDRESS_COLUMNS = ("email", "address", "recipient")
# Removed around an address and a column name, as are U+FEFF and spaces that look like U+0020.
BLANKS = " \t\r\n\v\f\u00a0\u2007\u200b\u202f\u3000\ufeff"


@dataclass(frozen=True, slots=True)
class ListRow:
    """One row. ``number`` is its line in the list, from 1; ``problem`` says why ``address`` cannot be used."""

    number: int
    address: str
    fields: dict[str, str]
    problem: str = ""


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    if path == "-":
        yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        return
    with _file(path) as file:
        yield file


def _file(path: str) -> IO[str]:
    try:
        return Path(path).open(encoding="utf-8-sig", newline="")
    except OSError as exc:
        raise LocalError(f"{path}: {exc.strerror}") from exc


def read_rows(path: str, column: str | None = None) -> Iterator[ListRow]:
    """The rows of ``path``, ``-`` for standard input. Raises LocalError when the file is not a list.

    A row that cannot be used has a ``problem``; the rows after it are read.
    """
    with _opened(path) as file:
        try:
            first = file.readline()
            lines = _with_first(first, file)
            records = _json_records(lines) if first.lstrip().startswith("{") else _csv_records(lines)
            for number, record in records:
                yield _row(number, record, column, path)
        except (csv.Error, UnicodeDecodeError) as exc:
            raise LocalError(f"{path}: {exc}") from exc


def _with_first(first: str, others: IO[str]) -> Iterator[str]:
    if first:
        yield first
    yield from others


def _csv_records(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, object] | str]]:
    reader = csv.DictReader(lines)
    for record in reader:
        yield (
            reader.line_num,
            {str(name).strip(BLANKS): value for name, value in record.items() if name is not None},
        )


def _json_records(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, object] | str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = from_json(line)
        except ValueError as exc:
            yield number, f"not JSON: {exc}"
            continue
        yield number, record if isinstance(record, dict) else "not a JSON object"


def address_column_in(names: Iterable[str]) -> str | None:
    """The first of ADDRESS_COLUMNS among ``names``, as it is written there, in whatever case; None if there is none."""
    found: dict[str, str] = {}
    for name in names:
        lower = name.strip(BLANKS).lower()
        if name == lower or lower not in found:
            found[lower] = name
    return next((found[name] for name in ADDRESS_COLUMNS if name in found), None)


def _row(number: int, record: dict[str, object] | str, column: str | None, path: str) -> ListRow:
    if isinstance(record, str):
        return ListRow(number, "", {}, record)
    fields = {name: "" if value is None else str(value) for name, value in record.items()}
    name = column or address_column_in(fields)
    if name is None or name not in fields:
        expected = column or " or ".join(ADDRESS_COLUMNS)
        raise LocalError(f"{path}:{number}: no column {expected}; columns: {', '.join(fields)}")
    text = fields[name].strip(BLANKS)
    try:
        return ListRow(number, normalise(text), fields)
    except AddressError as exc:
        return ListRow(number, text, fields, str(exc))
