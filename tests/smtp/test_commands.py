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


@pytest.mark.parametrize(
    ("argument", "address"),
    [
        ("a@b.example", "a@b.example"), (" a@B.example", "a@b.example"), ("< a@b.example >", "a@b.example"),
        ('"a <b"@c.example', '"a <b"@c.example'), ("<@hop.example:a@b.example>", "a@b.example"),
    ],
)  # fmt: skip
def test_without_brackets(argument: str, address: str) -> None:
    """Where a listener is relaxed; parameters are read as always."""
    mail = parse_mail(f"FROM:{argument} SIZE=5", extended=True, max_size=10, relaxed=True)
    assert (mail.sender, mail.size) == (address, 5)
    rcpt = parse_rcpt(f"TO:{argument} NOTIFY=NEVER", smtputf8=False, extended=True, relaxed=True)
    assert (rcpt.address, rcpt.notify) == (address, 1)
    if argument[0] != "<" or " " in argument:
        with pytest.raises(Refused, match="501"):
            parse_mail(f"FROM:{argument}", extended=True, max_size=10)


@pytest.mark.parametrize(
    "argument", ["", " ", "<a@b.example", "a@b.example>", "<<a@b.example>>", "a b@c.example", "<a @b.example>", "a@b.example,c@d.example"]
)  # fmt: skip
def test_refused_where_relaxed(argument: str) -> None:
    with pytest.raises(Refused):
        parse_rcpt(f"TO:{argument}", smtputf8=False, extended=True, relaxed=True)


def test_the_null_sender_has_brackets() -> None:
    for argument in ("<>", "< >", " <>"):
        assert parse_mail(f"FROM:{argument}", extended=True, max_size=10, relaxed=True).sender == ""


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
    [
        "<" + "@a," * 1000 + ">",
        "<" + '"' + "\\a" * 2000 + ">",
        "<" + "a" * 4000 + ">",
        " " * 4000,
        "<" + " " * 4000,
        "a" + " " * 4000 + "<",
    ],
)
@pytest.mark.parametrize("relaxed", [False, True])
def test_no_argument_takes_long(path: str, relaxed: bool) -> None:
    """A route of a thousand hops once took minutes."""
    began = time.monotonic()
    with pytest.raises(Refused):
        parse_rcpt("TO:" + path, smtputf8=True, extended=True, relaxed=relaxed)
    assert time.monotonic() - began < scaled(1.0)
