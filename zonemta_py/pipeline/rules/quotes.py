"""Quotes in a CSV file: whether a cell spans lines, and where a quote is not closed. Pure."""

import csv
from collections.abc import Iterable, Iterator


class UnclosedQuote(ValueError):
    """The quote that is opened in the row that begins at ``line`` is not closed where the cell ends."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: a quote is not closed")
        self.line = line


class _Lines:
    """Counts the lines that a reader takes. ``begin``: the number of the first one of its row, 0 before it is taken."""

    def __init__(self, lines: Iterable[str], comment: str) -> None:
        self._lines = iter(lines)
        self._comment = comment
        self.count = self.begin = 0
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            self.count += 1
            if self.begin or not self._comment or not line.startswith(self._comment):
                self.begin = self.begin or self.count
                return line
        self.ended = True
        raise StopIteration


def cell_spans_lines(
    lines: Iterable[str], separator: str, quote: str, cell_max: int, comment: str
) -> bool:
    """Whether a quoted cell contains a line end. Raises UnclosedQuote.

    A quote inside a cell that ends in its line is left to the reader of the rows. ``cell_max``: characters of a cell.
    ``comment``: what lines begin with that are no rows, or nothing.
    """
    csv.field_size_limit(cell_max)
    counted, found = _Lines(lines, comment), False
    while not counted.ended:
        counted.begin = 0
        try:
            for _ in csv.reader(counted, delimiter=separator, quotechar=quote, strict=True):
                found = found or counted.count > counted.begin
                counted.begin = 0
        except csv.Error:
            if counted.count > counted.begin or counted.ended:
                raise UnclosedQuote(counted.begin) from None
    return found
