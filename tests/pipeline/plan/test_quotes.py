"""Quotes in CSV files."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.plan.csv import CsvForm, UnclosedQuote, cell_spans_lines, form_of_options


def spans(text: str, comment: str = "") -> bool:
    return cell_spans_lines(io.StringIO(text, newline=""), CsvForm(comment=comment))


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


@pytest.mark.parametrize(
    ("options", "text", "found"),
    [
        ({"escape": "\\"}, 'a,"b \\" c"\nd,e\n', False),
        ({"Escape": "\\"}, 'a,"b \\"\n c"\nd,e\n', True),
        ({"escape": "\\"}, 'a,"b \\\\"\nd,e\\\n', False),
        ({"sep": "||"}, 'a||"b||c"\nd||e\n', False),
        ({"delimiter": "||"}, 'a||"b\nc"\nd||e\n', True),
        ({"SEP": "\\t"}, 'a\t"b\nc"\nd\te\n', True),
        ({}, 'x, "1\n2"\n', True),
        ({}, '"1\n2" ,x\n"3"\t\n', True),
        ({}, '"a ""b"" ,c" \nd,e\n', False),
        ({"sep": "||"}, 'x|| "1\n2" ||y\n', True),
        ({"escape": "\\"}, '\\"x,"1\n2"\n', True),
        ({"escape": "\\"}, 'x, \\"y\n"a,\\"b"\n', False),
        ({"quote": "'"}, "a,'b\nc'\nd,\"\n", True),
        ({"quote": ""}, 'a,"b\nc\n', False),
    ],
)
def test_forms(options: dict[str, str], text: str, found: bool) -> None:
    form = form_of_options(options, 1 << 20)
    assert cell_spans_lines(io.StringIO(text, newline=""), form) is found
    if form.has_quotes:
        with pytest.raises(UnclosedQuote, match="line 3"):
            cell = f"x\ny{form.separator}{form.quote}z\n"
            cell_spans_lines(io.StringIO("\n" + cell + "u\nv\n", newline=""), form)


@given(st.lists(st.lists(st.text('ab,"\n', max_size=4), min_size=2, max_size=3), max_size=6))
def test_what_a_writer_wrote(rows: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    assert spans(text.getvalue()) == any("\n" in cell for row in rows for cell in row)
