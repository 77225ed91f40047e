"""Lists that tasks read without Spark's reader: the same cells, in the same order."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from zonemta_py.submit.recipients import BLANKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

plain_lists = pytest.importorskip("zonemta_py.pipeline.plan.list")

CELLS = (
    "a@x.example", " a@x.example", "\ta@x.example\x0b", "\u00a0b@x.example\u00a0", "\ufeffc@x.example", "\x01d@x.example\x1f",
    "\u00e9t\u00e9@x.example", "\u00c9@b\u00fccher.example", "", "  ", "\u3000", "\U0001f600@x.example", "x" * 300, "\x7f", "a'b@x.example",
    "\x01\u00a0e@x.example\u00a0 ", "\\", "NULL", "null", "-", "#a@x.example",
)  # fmt: skip


def written(path: Path, header: str, lines: list[str], ends: str = "\n") -> Path:
    rng = random.Random(7)
    path.write_bytes(
        (header + "\n" + "".join(line + rng.choice(ends.split("|")) for line in lines)).encode()
    )
    return path


def by_spark(spark: "SparkSession", path: Path, column: str) -> tuple[list[str], list[str]]:
    """The columns, and the cells as a plan reads them."""
    from pyspark.sql import functions as F

    from zonemta_py.pipeline.plan.list import POSITION, read_list

    rows = read_list(spark, str(path), {})
    cell = F.btrim(F.coalesce(F.col(column), F.lit("")), F.lit(BLANKS))
    found = rows.select(f"`{POSITION}`", cell.alias("cell")).orderBy(f"`{POSITION}`").collect()
    return [name for name in rows.columns if name != POSITION], [row["cell"] for row in found]


def by_tasks(path: Path, names: list[str], column: str, separator: str = ",") -> list[str]:
    """The cells of all parts in the order of their positions, which are different."""
    listed = plain_lists.plain_list(path, separator, names, column)
    assert listed is not None
    found = [pair for part in range(listed.parts) for pair in zip(*map(lambda a: a.to_pylist(), listed.read(part)), strict=True)]  # fmt: skip
    assert [position for position, _ in found] == sorted({position for position, _ in found})
    return [cell for _, cell in found]


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("name", "header", "column", "separator"),
    [
        ("list.csv", "email,name", "email", ","),
        ("list.csv", " name , email ,note", "email", ","),
        ("list.csv", "email", "email", ","),
        ("list.tsv", "name\temail", "email", "\t"),
    ],
)
def test_the_cells_are_those_of_spark(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ragged: bool,
    name: str,
    header: str,
    column: str,
    separator: str,
) -> None:
    """White space, other characters, empty lines, both line ends, and lines with more or fewer cells; in parts of any size."""
    rng = random.Random(f"{header} {ragged}")
    width = header.count(separator) + 1
    cells = [cell for cell in CELLS if separator not in cell]
    lines = []
    for _ in range(400):
        count = rng.choice((width, width, 1, width + 2)) if ragged else width
        lines.append(separator.join(rng.choice(cells) for _ in range(count)))
        if rng.random() < 0.05:
            lines.append(rng.choice(("", "   ", " \t ")) if ragged or width == 1 else "")
    path = written(tmp_path / name, header, lines, "\n|\r\n")
    names, expected = by_spark(spark, path, column)
    assert len(expected) > 300
    for part_bytes in (1 << 24, 997, 64):
        monkeypatch.setattr(plain_lists, "PART_BYTES", part_bytes)
        monkeypatch.setattr(plain_lists, "READ_BYTES", 512)
        assert by_tasks(path, names, column, separator) == expected, part_bytes


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_and_a_byte_order_mark(spark: "SparkSession", tmp_path: Path, end: str) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(f"\ufeffemail,name\na@x.example,A\nb@x.example,B{end}".encode())
    names, expected = by_spark(spark, path, "email")
    assert by_tasks(path, names, "email") == expected == ["a@x.example", "b@x.example"]


def test_a_list_without_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "list.csv", "email,name", [])
    assert by_tasks(path, ["email", "name"], "email") == []


@pytest.mark.parametrize(
    "content",
    [
        b'email,name\n"a, b"@x.example,A\n',
        b"email,name\na@x.example,A\rb@x.example,B\n",
        b"email,name\na@x.example,A\r",
        b"email,name\na@x.example,\xe9\n",
        b"email,name\na@x.example,\xc3",
        b"email,name\na@x.example,A\0\n",
        b"email,name\n" + b"x" * (1 << 19) + b",A\n",
        b"email,name,name\na@x.example,A,B\n",
        b"\nemail,name\na@x.example,A\n",
        b"email,name",
        b"",
    ],
)
def test_files_that_spark_has_to_read(tmp_path: Path, content: bytes) -> None:
    """Quotes, other line ends, another encoding, long lines, renamed columns, no header in the first line."""
    path = tmp_path / "list.csv"
    path.write_bytes(content)
    assert plain_lists.plain_list(path, ",", ["email", "name"], "email") is None


@pytest.mark.parametrize("at", [*range(500, 524)])
def test_characters_and_line_ends_across_two_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """They are found wherever the file is divided to look at it."""
    monkeypatch.setattr(plain_lists, "READ_BYTES", 512)
    start = "email\n" + "x" * (at - len("email\n")) + "\u00e9\r\na@x.example\n"
    path = tmp_path / "list.csv"
    path.write_bytes(start.encode())
    assert by_tasks(path, ["email"], "email")[-1] == "a@x.example"
    path.write_bytes(start.encode().replace(b"\r\n", b"\ra"))
    assert plain_lists.plain_list(path, ",", ["email"], "email") is None
