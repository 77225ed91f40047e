"""Quotes in CSV files."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.rules.quotes import UnclosedQuote, cell_spans_lines

CELL_MAX = 1 << 20


def spans(text: str, comment: str = "") -> bool:
    return cell_spans_lines(io.StringIO(text, newline=""), ",", '"', CELL_MAX, comment)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", False),
        ('a,"b, c"\nd,e\n', False),
        ('a,"b\nc"\nd,e\n', True),
        ('a,"b ""c"" d"\n', False),
        ('a,"b" c\nd,e\n', False),  # wrong, but its row ends with its line
        ('a,b"c\nd,e"f\n', False),
        ("x" * 200_000 + '\na,"b\n"\n', True),
    ],
)
def test_cells_that_span_lines(text: str, found: bool) -> None:
    assert spans(text) is found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a,b\nc,"d\ne,f\n', 2),
        ('a,"b', 1),
        ('a,b\n"c,d\ne,f\ng,"h"\ni,j\n', 2),
        ('a,"b\nc"\nd,"e\nf\n', 3),
    ],
)
def test_a_quote_that_is_not_closed(text: str, line: int) -> None:
    with pytest.raises(UnclosedQuote, match=f"line {line}: a quote is not closed"):
        spans(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('# it is "open\na,b\n# "\nc,d\n', False),
        ('#"open\na,"b\n# c"\nd,e\n', True),  # within a row it is no comment
        ('a,b\n#"\n', False),
        ('#"\n', False),
    ],
)
def test_comments(text: str, found: bool) -> None:
    assert spans(text, "#") is found


def test_comments_count_as_lines() -> None:
    with pytest.raises(UnclosedQuote, match="line 4"):
        spans('#\n\n#"\nc,"d\n# e\n', "#")


@given(st.lists(st.lists(st.text('ab,"\n', max_size=4), min_size=2, max_size=3), max_size=6))
def test_what_a_writer_wrote(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    assert spans(text.getvalue()) == any("\n" in cell for row in rows for cell in row)
