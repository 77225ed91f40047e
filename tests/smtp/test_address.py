"""Addresses: one spelling for one mailbox, and a reason for every refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.address import (
    ADDRESS_MAX,
    AddressError,
    domain_of,
    in_header,
    needs_smtputf8,
    normalise,
    strict,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a@example.org", "a@example.org"),
        ("A.B+tag@Example.ORG", "A.B+tag@example.org"),
        ('"a b"@example.org', '"a b"@example.org'),
        ('"a@b"@example.org', '"a@b"@example.org'),
        ("a@[127.0.0.1]", "a@[127.0.0.1]"),
        ("a@[IPv6:::1]", "a@[ipv6:::1]"),
        ("a@bücher.example", "a@xn--bcher-kva.example"),
        ("a@BÜCHER.example", "a@xn--bcher-kva.example"),
        ("zoë@example.org", "zoë@example.org"),
        ("a/b=c@example.org", "a/b=c@example.org"),
        ("a@localhost", "a@localhost"),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    """What is an address gets its one spelling."""
    assert normalise(text) == expected
    assert normalise(normalise(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "@", "a@", "@b", "a b@c.d", "a@b c", "a@b..c", "a@-b.c", "a@b.c.", "a@b.c..", "a@.b.c", "a@b@c.d", "a(x)@b.c", "a,b@c.d", "a:b@c.d", 'a"b"@c.d', '"a"b@c.d',
        "a@b\r\nRCPT TO:<x@y>", "a\r\n@b.c", "a\0@b.c", "x" * 320 + "@b.c", "ü" * 159 + "@b.c", "a@" + "b" * 64 + ".c",
        "a@" + ".".join(["b" * 60] * 5), "a@[1.2.3]", "a@[::1", '"a@b.c', '"a\r"@b.c', "\udc80@b.c",
        "a@xn--\u00fc.c",
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    """Text that is not an address is refused with AddressError."""
    with pytest.raises(AddressError):
        normalise(text)


CARRIED = [
    "user..name@docomo.example", "user.@ezweb.example", ".user@docomo.example", "a@b_c.example", "a@_b.example",
    f"b+{'0123456789abcdef' * 4}=x=example.org@lists.example", "x" * 300 + "@b.example", 'a."b c".d@e.example',
    '"".x@b.example', "zoë..x@b.example",
]  # fmt: skip


@pytest.mark.parametrize("text", CARRIED)
def test_carried_and_not_made(text: str) -> None:
    """Mail of others is carried as it is; an address that we make has the form of RFC 5321."""
    assert normalise(text) == text
    with pytest.raises(AddressError):
        strict(text)


@pytest.mark.parametrize(
    ("address", "field"),
    [
        ("a.b@c.d", "a.b@c.d"), ("a..b@c.d", '"a..b"@c.d'), ("a.@c.d", '"a."@c.d'), ('"a b"@c.d', '"a b"@c.d'),
        ('"a b".c@d.e', '"a b.c"@d.e'), ('"a\\\\".b@c.d', '"a\\\\.b"@c.d'), ('"a\\"".@c.d', '"a\\"."@c.d'), ("", ""),
    ],
)  # fmt: skip
def test_in_header(address: str, field: str) -> None:
    assert in_header(address) == field
    if address:
        assert normalise(address) == address
        assert strict(field) == field


@given(st.text(max_size=80))
def test_strict_is_narrower(text: str) -> None:
    try:
        made = strict(text)
    except AddressError:
        return
    assert made == normalise(text)
    assert len(made.encode()) <= ADDRESS_MAX


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    """Whatever comes, the result is safe to write into a command."""
    try:
        address = normalise(text)
    except AddressError:
        return
    assert not set("\r\n\0<>") & set(domain_of(address))
    assert "\r" not in address and "\n" not in address and "\0" not in address
    assert domain_of(address).isascii()


def test_parts() -> None:
    """The domain, and whether the local part needs SMTPUTF8."""
    assert domain_of('"a@b"@c.d') == "c.d"
    assert domain_of("") == ""
    assert needs_smtputf8("zoë@c.d")
    assert not needs_smtputf8(normalise("a@bücher.example"))
