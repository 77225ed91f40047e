"""Fields in 7 bits: what is in ASCII keeps its bytes, and a reader finds the same names, addresses and parameters."""

from email.message import Message
from email.policy import default

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.seven_bit import ascii_value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("To", "J\u00f6rg <a@b.example>, c@d.example", "=?utf-8?q?J=C3=B6rg?= <a@b.example>, c@d.example"),
        ("To", '"Smith, J\u00f6rg" <a@b.example>', '"Smith," =?utf-8?q?J=C3=B6rg?= <a@b.example>'),
        ("Cc", '"M\u00fcller, J\u00f6rg" <a@b.example>', "=?utf-8?q?M=C3=BCller=2C_J=C3=B6rg?= <a@b.example>"),
        ("From", '"ceo@bank.example, \u00e9" <a@b.example>', '"ceo@bank.example," =?utf-8?q?=C3=A9?= <a@b.example>'),
        ("From", '"\u00e9@bank.example" <a@b.example>', '=?utf-8?q?=C3=A9?= "@bank.example" <a@b.example>'),
        ("From", '"\u00e9\uff20bank.example" <a@b.example>', '=?utf-8?q?=C3=A9?= "@bank.example" <a@b.example>'),
        ("From", "a@b.example (J\u00f6rg)", "a@b.example (=?utf-8?q?J=C3=B6rg?=)"),
        ("To", "Gr\u00fcn: a@b.example;", "=?utf-8?q?Gr=C3=BCn?=: a@b.example;"),
        ("To", "<a@b\u00fccher.example>", "<a@xn--bcher-kva.example>"),
        ("To", "<\u00e9@b.example>", "<?@b.example>"),
        ("To", '"\u00e9 <a@b.example>', '"? <a@b.example>'),
        ("List-Id", "\u00dcber <list.b.example>", "=?utf-8?q?=C3=9Cber?= <list.b.example>"),
        ("List-Unsubscribe", "<https://b.example/\u00e9?x=1>", "<https://b.example/%C3%A9?x=1>"),
        ("Message-ID", "<\u00e9@b.example>", "<%C3%A9@b.example>"),
        ("Content-Type", 'text/plain; name="gr\u00fcn, 1.txt"', "text/plain; name*=utf-8''gr%C3%BCn%2C%201.txt"),
        ("Content-Disposition", "attachment; filename=\u00e9; x=y", "attachment; filename*=utf-8''%C3%A9; x=y"),
        ("Received", "from \u00e9 by b", "from ? by b"),
        ("Subject", "Hello gr\u00fcn, a@b", "Hello =?utf-8?q?gr=C3=BCn=2C?= a@b"),
        ("Subject", "=?utf-8?q?x?= \u00e9", "=?utf-8?q?x?= =?utf-8?q?_=C3=A9?="),
        ("X-Other", "<a@b.example>, \u00e9@c", "<a@b.example>, =?utf-8?q?=C3=A9=40c?="),
    ],
)  # fmt: skip
def test_by_kind(name: str, value: str, expected: str) -> None:
    assert ascii_value(name, value.encode()).replace("  ", " ") == expected


def test_other_character_sets() -> None:
    """What is not UTF-8 is taken for Latin-1; a URL keeps its bytes."""
    assert ascii_value("Subject", b"caf\xe9") == "=?utf-8?q?caf=C3=A9?="
    assert ascii_value("List-Post", b"<mailto:\xe9@x>") == "<mailto:%E9@x>"


@given(
    st.sampled_from(["From", "Content-Type", "Subject", "Message-ID", "Received"]),
    st.binary(max_size=60),
)
def test_any_value(name: str, value: bytes) -> None:
    assert ascii_value(name, value).isascii()


names = st.lists(
    st.sampled_from(
        ["a", "\u00e9", "\u00fc,", "(", "b@c", "\u4f60", '\\"', ".", "=?", "<", ";", "\uff20"]
    ),
    min_size=1,
)


@given(names)
def test_a_quoted_name_has_the_same_letters(words: list[str]) -> None:
    """Whatever is in it, there is one mailbox, and the letters of the name stay."""
    text = " ".join(words)
    value = ascii_value("From", f'"{text}" <a@b.example>'.encode())
    (found,) = default.header_factory("From", value.replace("\r\n", "")).addresses
    assert found.addr_spec == "a@b.example"
    letters = "".join(each for each in found.display_name if each.isalpha())
    assert letters == "".join(each for each in text if each.isalpha())


def test_parameters_are_read_again() -> None:
    message = Message()
    message["Content-Type"] = ascii_value(
        "Content-Type", 'text/plain; name="\u00e9;\\"x"; charset=utf-8'.encode()
    )
    assert message.get_filename() == '\u00e9;"x'
    assert message.get_content_charset() == "utf-8"
    assert decode(ascii_value("Subject", "a \u00e9\r\n \u00fc b".encode())) == "a \u00e9 \u00fc b"
