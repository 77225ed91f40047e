"""Suppression files."""

import csv
import io
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.suppression import (
    COLUMNS,
    NO_REASON,
    SuppressionList,
    read_suppression,
)

ENTRIES = (
    "a@x.example",
    "#a@x.example",
    '"a,b"@x.example',
    "x.example",
    "é'@x.example",
    "a#b@x.example",
)


def test_a_suppression_file(tmp_path: Path) -> None:
    """Addresses and domains are normalised; bad lines are counted and ignored."""
    path = tmp_path / "s.txt"
    path.write_text(
        "# comment\n\nA@EXAMPLE.org, bounced\n@Spam.example\nbücher.example\tasked\nnot an address\n"
        'a@example.org,again\nuser#tag@x.example\nb@x.example # note\n"a,b"@x.example, both\nlocalhost\n@localhost\n'
    )
    found = read_suppression([path])
    assert found.entries == {
        "a@example.org": "bounced",  # the first line counts
        "spam.example": "suppressed",
        "xn--bcher-kva.example": "asked",
        "user#tag@x.example": "suppressed",
        "b@x.example": "suppressed",
        '"a,b"@x.example': "both",
        "localhost": "suppressed",
    }
    assert found.bad == 2
    assert "s.txt:6: 'not an address'" in found.bad_lines[0]
    with pytest.raises(LocalError, match="nothing-here"):
        read_suppression([tmp_path / "nothing-here"])


def test_a_line_that_expired(tmp_path: Path) -> None:
    """A line applies on its last day, and not on the day after."""
    path = tmp_path / "s.txt"
    path.write_text("a@x.example, bounced, on monday, until 2026-11-20\nb@x.example, until 2026-11-21\n")
    found = SuppressionList(date(2026, 11, 21))
    for line in path.read_text().splitlines():
        found.add(line, "s.txt")
    assert (found.entries, found.expired) == ({"b@x.example": "suppressed"}, 1)
    assert read_suppression([path]).bad == 0


def test_a_file_with_a_header(tmp_path: Path) -> None:
    """The header is no entry; cells may be quoted; the last day has a column of its own."""
    path = tmp_path / "s.csv"
    path.write_text(
        '\ufeff# made by hand\n Entry ,reason,until\n#no,entry,\n"#User@x.example","one, two",\n'
        '"""a,b""@x.example",quoted,2999-01-01\nold@x.example,,2020-01-01\nbad@x.example,,soon\n\n'
        "\u00a0b@x.example\t\n"
    )
    found = read_suppression([path])
    assert found.entries == {
        "#user@x.example": "one, two",
        '"a,b"@x.example': "quoted",
        "b@x.example": "suppressed",
    }
    assert (found.bad, found.expired) == (1, 1)
    assert "s.csv:7: until 'soon'" in found.bad_lines[0]


@pytest.mark.parametrize("header", ["email", "Domain;why", "bounced_at\taddress", "recipient,date"])
def test_headers_of_other_programs(tmp_path: Path, header: str) -> None:
    cells = {"email": "a@x.example", "Domain": "y.example", "address": "a@x.example", "recipient": "a@x.example"}  # fmt: skip
    mark = next((mark for mark in "\t;" if mark in header), ",")
    path = tmp_path / "s.txt"
    path.write_text(f"{header}\n{mark.join(cells.get(name, '2026') for name in header.split(mark))}\n")
    found = read_suppression([path])
    assert (len(found.entries), found.bad) == (1, 0)
    assert set(found.entries) <= {"a@x.example", "y.example"}


@given(st.lists(st.tuples(st.sampled_from(ENTRIES), st.text('a,"# é', max_size=8)), max_size=6))
def test_what_suppress_writes_is_read(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerow(COLUMNS)
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([entry, reason, ""] for entry, reason in rows)
    found = SuppressionList()
    found.read(io.StringIO(text.getvalue()), "s")
    expected: dict[str, str] = {}
    for entry, reason in rows:
        expected.setdefault(entry, reason.strip() or NO_REASON)
    assert (found.entries, found.bad) == (expected, 0)
