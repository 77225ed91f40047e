"""Lines of suppression files."""

import pytest

from zonemta_py.pipeline.plan.suppression import entry_key, has_entry, header_of, split_line
from zonemta_py.smtp.address import AddressError


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("A@EXAMPLE.org, bounced", ("A@EXAMPLE.org", " bounced", "")),
        ("bücher.example\tasked", ("bücher.example", "asked", "")),
        ("user#tag@x.example", ("user#tag@x.example", "", "")),
        ("b@x.example # note", ("b@x.example", "", "")),
        ('"a,b"@x.example, both', ('"a,b"@x.example', " both", "")),
        ('"#a@x.example","one, two",', ("#a@x.example", "one, two,", "")),
        ("a@x.example, bounced, on monday, until 2026-11-20", ("a@x.example", " bounced, on monday", "2026-11-20")),
        ("b@x.example, until 2026-11-21", ("b@x.example", "", "2026-11-21")),
    ],
)  # fmt: skip
def test_a_line_without_a_header(line: str, parts: tuple[str, str, str]) -> None:
    entry, reason, until = split_line(line)
    assert (entry, reason.rstrip(","), until) == (parts[0], parts[1].rstrip(","), parts[2])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("A@EXAMPLE.org", "a@example.org"),
        ("@Spam.example", "spam.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("@localhost", "localhost"),
        ("\u00a0b@x.example\t", "b@x.example"),
    ],
)
def test_the_key_of_an_entry(text: str, key: str) -> None:
    assert entry_key(text) == key


@pytest.mark.parametrize("text", ["not an address", "localhost", "", "@"])
def test_no_entry(text: str) -> None:
    with pytest.raises(AddressError):
        entry_key(text)


@pytest.mark.parametrize(
    ("line", "column", "delimiter"),
    [
        (" Entry ,reason,until", "entry", ","),
        ("Domain;why", "domain", ";"),
        ("bounced_at\taddress", "address", "\t"),
        ("recipient,date", "recipient", ","),
        ("a@x.example,bounced", None, ","),
        ("", None, ","),
    ],
)
def test_headers(line: str, column: str | None, delimiter: str) -> None:
    assert header_of(line) == (column, delimiter)


def test_comments() -> None:
    assert not any(map(has_entry, ["# comment", "", " \t", "\ufeff# made by hand", "  # indented"]))
    assert has_entry('"#a@x.example"')
