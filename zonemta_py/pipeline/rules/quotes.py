"""Quotes in a CSV file: whether a cell spans lines, and where a quote is not closed. Pure."""

import csv
from collections.abc import Iterable, Iterator


class UnclosedQuote(ValueError):
    """The quote that is opened in the row that begins at ``line`` is not closed where the cell ends."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: a quote is not closed")
        self.line = line


class _Lines:
    """Counts the lines that a reader takes."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.count = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.ended = True
            raise
        self.count += 1
        return line


def cell_spans_lines(lines: Iterable[str], separator: str, quote: str, cell_max: int) -> bool:
    """Whether a quoted cell contains a line end. Raises UnclosedQuote.

    A quote inside a cell that ends in its line is left to the reader of the rows. ``cell_max``: characters of a cell.
    """
    csv.field_size_limit(cell_max)
    counted, found = _Lines(lines), False
    while not counted.ended:
        begin = counted.count + 1
        try:
            for _ in csv.reader(counted, delimiter=separator, quotechar=quote, strict=True):
                found = found or counted.count > begin
                begin = counted.count + 1
        except csv.Error:
            if counted.count > begin or counted.ended:
                raise UnclosedQuote(begin) from None
    return found
