"""Reads the addresses of the most common kind of list, a local CSV without quotes, by Arrow in the tasks.

Spark's reader gives the same rows at several times the cost: it parses each cell in Java, and copies it to Python.
"""

import codecs
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from zonemta_py.submit.recipients import BLANKS

PART_BYTES = 1 << 20  # of the file, read together
PARTS_OF_TASK = 16
READ_BYTES = 1 << 18
PARSED_BYTES = 2 << 20  # at once, by Arrow; more than a part and its last line
LINE_MAX = 1 << 18  # bytes; a file with longer lines is left to Spark, which limits cells
TRIMMED = "".join(map(chr, range(0x21)))  # what Spark's reader removes around a cell
PART_SHIFT = 33  # a position has the number of its part above that of its row, as those of Spark


class PlainList(NamedTuple):
    """A file whose lines are cells with ``separator`` between them, from byte ``begin``, behind its header, to ``end``.

    ``columns``: how many there are; ``column``: the 0-based place of the address.
    """

    path: str
    separator: str
    columns: int
    column: int
    begin: int
    end: int

    @property
    def parts(self) -> int:
        """In how many parts it is read; a line belongs to that in which it begins."""
        return max(1, -(-(self.end - self.begin) // PART_BYTES))

    @property
    def tasks(self) -> int:
        """How many tasks read it."""
        return -(-self.parts // PARTS_OF_TASK)

    def read(self, part: int) -> tuple[pa.Array, pa.Array]:
        """The positions of the lines of a part, and their cells with the address, trimmed."""
        begin = self.begin + part * PART_BYTES
        with Path(self.path).open("rb") as file:
            data = _lines(file, self.begin, begin, min(begin + PART_BYTES, self.end))
        cells = _trimmed(self._cells(data))
        return pa.array(np.arange(len(cells)) + (part << PART_SHIFT), pa.int64()), cells

    def _cells(self, data: bytes) -> pa.Array:
        if not data:
            return pa.array([], pa.string())
        ragged = _has_blank_line(data)

        def note(row: pacsv.InvalidRow) -> str:
            nonlocal ragged
            ragged = True
            return "skip"

        names = [str(number) for number in range(self.columns)]
        wanted = names[self.column]
        table = pacsv.read_csv(
            pa.py_buffer(data),
            pacsv.ReadOptions(use_threads=False, column_names=names, block_size=PARSED_BYTES),
            pacsv.ParseOptions(
                delimiter=self.separator, quote_char=False, ignore_empty_lines=False, invalid_row_handler=note
            ),
            pacsv.ConvertOptions(
                check_utf8=False, column_types={wanted: pa.string()}, strings_can_be_null=False, include_columns=[wanted]
            ),
        )  # fmt: skip
        if ragged:
            return pa.array(self._cells_of_lines(data), pa.string())
        cells = table.column(0).combine_chunks()
        if self.columns > 1:
            return cells
        return cells.filter(pc.not_equal(pc.utf8_trim(cells, characters=TRIMMED), ""))

    def _cells_of_lines(self, data: bytes) -> Iterator[str]:
        """As the reader of Arrow, where lines have more or fewer cells: absent ones are empty, further ones are ignored."""
        for line in data.decode().split("\n"):
            if line.strip(TRIMMED):
                cells = line.removesuffix("\r").split(self.separator)
                yield cells[self.column] if self.column < len(cells) else ""


def _lines(file: BinaryIO, first: int, begin: int, end: int) -> bytes:
    """The lines that begin in a range of bytes."""
    if begin > first:
        file.seek(begin - 1)
        file.readline()  # the rest of a line of the part before
    else:
        file.seek(begin)
    data = file.read(max(0, end - file.tell()))
    return data + file.readline() if data and not data.endswith(b"\n") else data


def _has_blank_line(data: bytes) -> bool:
    """Whether there is a line that Spark leaves out, which Arrow does not always report."""
    values = np.frombuffer(data, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(values[:-1] == ord("\n")) + 1))
    if (values[starts] > ord(" ")).all():
        return False
    return bool((np.add.reduceat(values > ord(" "), starts, dtype=np.int32) == 0).any())


def _trimmed(cells: pa.Array) -> pa.Array:
    return pc.utf8_trim(pc.utf8_trim(cells, characters=TRIMMED), characters=BLANKS)


def begins_with_rows(source: str) -> bool:
    """Whether a local CSV file seems to have a row: a second line that is not blank. It saves a look by Spark."""
    path = Path(source)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt") or not path.is_file():
        return False
    with path.open("rb") as file:
        return all(file.readline(LINE_MAX).strip() for _ in range(2))


def plain_list(path: Path, separator: str, names: Sequence[str], column: str) -> PlainList | None:
    """How to read ``path``, for which Spark has found the columns ``names``; None for a file that Spark has to read.

    It must be UTF-8 without quotes, zero bytes, long lines, and carriage returns within a line.
    """
    with path.open("rb") as file:
        header = file.readline(LINE_MAX)
        begin = file.tell()
        file.seek(0)
        if not header.endswith(b"\n") or not _is_plain(file):
            return None
    text = header.decode().removeprefix("\ufeff")
    found = [name.strip(TRIMMED) for name in text.split(separator)]
    if found != list(names):  # such as names that occur twice, which Spark has changed
        return None
    return PlainList(
        os.fspath(path.absolute()),
        separator,
        len(found),
        found.index(column),
        begin,
        path.stat().st_size,
    )


def _is_plain(file: BinaryIO) -> bool:
    decode, unended, before = codecs.getincrementaldecoder("utf-8")().decode, 0, b""
    try:
        while block := file.read(READ_BYTES):
            if b'"' in block or b"\0" in block:
                return False
            data = before + block  # a carriage return at the end of a block may end a line
            if data.count(b"\r") != data.count(b"\r\n") + data.endswith(b"\r"):
                return False
            last_end = block.rfind(b"\n")
            unended = unended + len(block) if last_end < 0 else len(block) - last_end
            if unended > LINE_MAX:
                return False
            decode(block)
            before = block[-1:] if block.endswith(b"\r") else b""
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return not before
