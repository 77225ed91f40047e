"""Encoded words: read as the email package reads them, in linear time; written so that it reads the same again."""

from email.header import decode_header, make_header

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.encoded_words import WORD_MAX, decode, encode, encode_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain =? text", "plain =? text"),
        ("=?utf-8?q?caf=C3=A9?=", "caf\u00e9"),
        ("=?UTF-8?B?w6k=?= a", "\u00e9 a"),
        ("=?iso-8859-1*fr?Q?caf=E9_x?=", "caf\u00e9 x"),
        ("=?utf-8?q?a?= =?utf-8?q?b?=", "ab"),
        ("=?utf-8?q?a?= =?iso-8859-1?q?b?= c", "ab c"),
        ("=?utf-8?b?w6k=?=\r\n =?utf-8?b?w6k=?=", "\u00e9\u00e9"),
        ("=?utf-8?b?ww==?= =?utf-8?b?qQ==?=", "\u00e9"),  # one character in two words
        ("a=?utf-8?q?b?=c", "abc"),
        ("=?windows-1252?q?=80?= =?koi8-r?q?=C1?=", "\u20ac\u0430"),
        ("=?gb2312?b?xOO6ww==?=", "\u4f60\u597d"),
    ],
)
def test_decoding(text: str, expected: str) -> None:
    assert decode(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "=?utf-8?b?B64?=", "=?utf-8?q?=FF?=", "=?nope?q?a?=", "=?punycode?q?a-b?=", "=?idna?q?a?=",
        "=?utf-7?q?+AEA-?=", "=?unicode-escape?q?a?=", "=?utf-8?q?\u00e9?=",
    ],
)  # fmt: skip
def test_words_without_a_meaning(text: str) -> None:
    with pytest.raises(ValueError):
        decode(text)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=80))
def test_any_text_comes_back(text: str) -> None:
    encoded = encode(text)
    assert encoded.isascii()
    assert all(len(word) <= WORD_MAX for word in encoded.split())
    assert decode(encoded) == text
    assert str(make_header(decode_header(encoded))) == text


@given(
    st.lists(
        st.sampled_from(["a", "\u00e9", "=?utf-8?q?x?=", "b@c", "\u4f60\u597d", "\u00fc,"]), min_size=1
    )
)
def test_text_of_several_words(words: list[str]) -> None:
    encoded = encode_text(" ".join(words))
    assert encoded.isascii()
    assert decode(encoded) == decode(" ".join(words))


def test_words_in_ascii_stay() -> None:
    assert encode_text("Hello gr\u00fcn\r\n Welt") == "Hello =?utf-8?q?gr=C3=BCn?=\r\n Welt"
