"""Values of header fields, read back by the standard library's parser."""

from email import message_from_bytes, policy
from email.header import decode_header, make_header
from email.message import EmailMessage
from email.utils import getaddresses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.seven_bit import flat, folded, parameter, phrase, text_value

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cn", "Cc", "Co"]), max_size=200).map(flat)


@given(st.text(max_size=300))
def test_encoded_words(text: str) -> None:
    """They decode to the text, by our reader too; each has at most 75 bytes."""
    text = text.encode("utf-8", "replace").decode()
    words = text_value(text + "\u00e9")
    assert decode(words) == text + "\u00e9"
    assert all(len(word) <= 75 for word in words.split(" "))
    assert folded(f"X: {words}".encode()).replace(b"\r\n", b"") == f"X: {words}".encode()


@given(TEXTS)
def test_a_display_name_is_one(text: str) -> None:
    ((name, address),) = getaddresses([f"{phrase(text)} <a@b.example>"])
    assert address == "a@b.example"
    assert str(make_header(decode_header(name))) == text


@given(TEXTS)
def test_a_text_in_a_field(text: str) -> None:
    field = folded(f"Subject: {text_value(text)}".encode())
    assert all(len(line) <= 78 or b" " not in line.strip() for line in field.split(b"\r\n"))
    found = message_from_bytes(field + b"\r\n\r\n", policy=policy.compat32)["Subject"] or ""
    assert str(make_header(decode_header(found.replace("\r\n", "")))) == text


@pytest.mark.parametrize("text", ['a"b\\c.pdf', "Zo\u00eb; a=b.pdf", "x"])
def test_the_name_of_a_file(text: str) -> None:
    header = f"Content-Disposition: attachment; {parameter('filename', text)}\r\n\r\n"
    found = message_from_bytes(header.encode(), policy=policy.default)
    assert isinstance(found, EmailMessage)
    assert found.get_filename() == text


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("=?utf-8?q?a_b?= c", "a b c"),
        ("=?utf-8?q?a?= =?utf-8?b?Yg==?=", "ab"),
        ("=?utf-8?b?w6?= x =?utf-8?b?s=?=", "\ufffd x =?utf-8?b?s=?="),
        ("=?utf-8?q?Zo=C3?= =?utf-8?q?=AB?=", "Zo\u00eb"),
        ("=?iso-8859-1*de?Q?=FC?=", "\u00fc"),
        ("=?none?q?a?=", "=?none?q?a?="),
        ("=?utf-8?x?a?= =?a", "=?utf-8?x?a?= =?a"),
    ],
)
def test_decoded_words(given_text: str, expected: str) -> None:
    assert decode(given_text, lenient=True) == expected


def test_what_cannot_be_folded() -> None:
    assert folded(b"X: " + b"a" * 900) == b"X:\r\n " + b"a" * 900
    with pytest.raises(ValueError, match="more than 998 bytes"):
        folded(b"X: " + b"a" * 1000)
