"""MAIL and RCPT: values or a reply, in bounded time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import scaled
from zonemta_py.smtp.commands import Mail, Refused, parse_mail, parse_rcpt


def test_values() -> None:
    assert parse_mail("FROM:<a@B.example> SIZE=5 SMTPUTF8", extended=True, max_size=10) == Mail(
        "a@b.example", 5, True
    )
    assert parse_mail("from:<>", extended=False, max_size=10) == Mail("", 0, False)
    assert parse_mail("FROM:<a@b.example> AUTH=<>", extended=True, max_size=10).sender == "a@b.example"
    assert parse_rcpt("TO:<a@B.example>", smtputf8=False, extended=False).address == "a@b.example"


@given(st.text(max_size=120), st.booleans())
def test_any_argument_is_a_value_or_a_reply(text: str, extended: bool) -> None:
    """Nothing but Refused, with a reply on one line."""
    for parse in (
        lambda: parse_mail("FROM:" + text, extended=extended, max_size=1000),
        lambda: parse_rcpt("TO:<" + text + ">", smtputf8=True, extended=True),
    ):
        try:
            parse()
        except Refused as exc:
            assert exc.reply[0] in "45"
            assert "\n" not in exc.reply and "\r" not in exc.reply


@pytest.mark.parametrize(
    "path",
    ["<" + "@a," * 1000 + ">", "<" + '"' + "\\a" * 2000 + ">", "<" + "a" * 4000 + ">", " " * 4000],
)
def test_no_argument_takes_long(path: str) -> None:
    """A route of a thousand hops once took minutes."""
    began = time.monotonic()
    with pytest.raises(Refused):
        parse_rcpt("TO:" + path, smtputf8=True, extended=True)
    assert time.monotonic() - began < scaled(1.0)
