"""Tables in terminals of any width: no number is cut, no value is lost."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from zonemta_py.cli.common import fitted
from zonemta_py.core.model import STATES


def summary(*rows: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("zone", *STATES, "oldest", "largest destinations"):
        table.add_column(title.replace("_", " "), justify="right" if title in STATES else "left")
    for row in rows:
        table.add_row(*row)
    return table


def printed(table: Table, width: int) -> str:
    console = Console(file=(file := io.StringIO()), width=width, highlight=False, markup=False)
    console.print(fitted(table, width))
    return file.getvalue()


ROW = (
    "bulk",
    "1234567",
    "60",
    "7654321",
    "0",
    "9999999",
    "0",
    "12",
    "< 3.0h",
    "gmail.com 5550123, example.org 17",
)


@pytest.mark.parametrize("width", [200, 120, 100, 80, 70, 40, 20])
def test_no_number_is_cut(width: int) -> None:
    text = printed(summary(ROW, ROW), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for number in ("1234567", "7654321", "9999999", "60", "12"):
        assert sum(number in line.split() for line in lines) == 2, text
    assert "5550123" in text


def test_80_columns_hold_a_summary_as_a_table() -> None:
    lines = printed(summary(ROW), 80).splitlines()
    assert lines[0].split()[0] == "zone" or lines[1].split()[0] == "zone"
    assert sum(line.startswith("bulk ") for line in lines) == 1


def test_what_fits_stays_as_it_is() -> None:
    head, line = printed(summary(ROW), 10_000).splitlines()
    assert head.split("  ")[0] == "zone"
    assert "in flight" in head
    assert line.split()[4] == "0"


def test_a_narrow_terminal_has_a_block_for_each_row() -> None:
    text = printed(summary(ROW, ROW), 40)
    assert text.startswith("zone")
    assert text.count("\n\n") == 1
    assert "suspended" not in text, "a column with nothing but zeros"


def test_a_long_value_is_continued_below_itself() -> None:
    """No part of a reply looks like another line of the row."""
    table = Table(box=None)
    for title in ("destination", "why"):
        table.add_column(title)
    for number in range(8):
        table.add_column(f"number {number}", justify="right")
    reply = "unreachable: 450 busy " + "." * 35 + " destination gmail.com " + "." * 35 + " deferred 0"
    table.add_row("d.example", reply, *["1234567"] * 8)
    lines = printed(table, 60).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "destination", "why", *["number"] * 8,
    ]  # fmt: skip
    assert max(map(len, lines)) <= 60
