"""Text of strangers: nothing commands a terminal, nothing turns the direction of writing, no secret of a URL is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.text import escaped, escaped_json, one_line, without_secrets

HOSTILE = "a\x1b[2J\x9b2J\u202eb\u2066c\x7f\u2028\U000e0001\ud800é"


def test_by_hand() -> None:
    assert escaped("a\x1b\x9b\u202e\U000e0001") == "a\\x1b\\x9b\\u202e\\U000e0001"
    assert escaped("a\n\tb", keep="\n\t") == "a\n\tb"
    assert (
        escaped_json('{"a":"\x9b\u202e\x7f\U000e0001"}') == '{"a":"\\u009b\\u202e\\u007f\\udb40\\udc01"}'
    )
    assert one_line("a\r\nb") == "a  b"
    assert escaped("Zoë 日本 🙂") == one_line("Zoë 日本 🙂") == "Zoë 日本 🙂"


@given(st.text(max_size=40) | st.just(HOSTILE))
def test_all_are_printable(text: str) -> None:
    assert escaped(text).isprintable()
    assert one_line(text).isprintable()
    document = escaped_json(json.dumps(text, ensure_ascii=False))
    assert document.isprintable()
    assert json.loads(document) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_row_is_the_same_for_a_parser(text: str) -> None:
    row = {"name": text, text: [text]}
    assert from_json(escaped_json(to_json(row).decode())) == row


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:secret@127.0.0.1:1/in", "http://127.0.0.1:1/in"), ("redis://:secret@h", "redis://h"),
        ("http://h/a@b", "http://h/a@b"), ("http://u:p%40ss@secret@h:1/x", "http://h:1/x"), ("nonsense", "nonsense"),
        ("https://h/in?token=secret", "https://h/in?token=[secret]"), ("https://h?secret", "https://h?[secret]"),
        ("https://h/in?a=secret&b=secret#secret", "https://h/in?a=[secret]&b=[secret]"),
        ("https://h?to=a@b/secret", "https://h?to=[secret]"),
        ("cannot reach http://u:secret@h/x?key=secret: timed out", "cannot reach http://h/x?key=[secret] timed out"),
        ("--url=https://h/?k=secret", "--url=https://h/?k=[secret]"), ("unix:///run/redis.sock?db=0", "unix:///run/redis.sock?db=[secret]"),
    ],
)  # fmt: skip
def test_secrets_of_urls(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
