"""Authors of a message; what each form is allowed to say is in tests/intake/test_tenants.py."""

import pytest

from zonemta_py.smtp.authors import (
    Unreadable,
    author_addresses,
    author_domain,
    first_address,
    mailboxes,
    tokens,
)
from zonemta_py.smtp.headers import scan


def authors(value: str) -> list[str]:
    header = f"From: {value}\r\n".encode()
    return author_addresses(header, scan(header)[0])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("ann@acme.example", ["ann@acme.example"]),
        ("\u00c5nn <ann@ACME.example>", ["ann@acme.example"]),
        ('"Smith, Ann" <ann@acme.example>', ["ann@acme.example"]),
        ('"ceo@bank.example" <ann@acme.example>', ["ann@acme.example"]),
        ("ann (of acme) <ann@acme.example>", ["ann@acme.example"]),
        ("ann@acme.example (Ann)", ["ann@acme.example"]),
        ("[Acme] News <ann@acme.example>", ["ann@acme.example"]),
        ("'ann@acme.example' <ann@acme.example>", ["ann@acme.example"] * 2),
        ("=?utf-8?q?Caf=C3=A9_=40_Work?= <ann@acme.example>", ["ann@acme.example"]),
        ("=?utf-8?q?=40acme?= <ann@acme.example>", ["ann@acme.example"]),
        ("a@acme.example,, , b@acme.example", ["a@acme.example", "b@acme.example"]),
        ("=?utf-8?q?ceo_=40_bank=2Eexample?= <ann@acme.example>", ["ceo@bank.example", "ann@acme.example"]),
        ("ceo =?utf-8?q?=40bank=2Eexample?= <ann@acme.example>", ["ceo@bank.example", "ann@acme.example"]),
        ("=?utf-8?q?ceo?= =?utf-8?q?=40bank.example?= <a@b.example>", ["ceo@bank.example", "a@b.example"]),
        ("a@b.example =?utf-8?q?=2Ebank=2Eexample?= <a@b.example>", ["a@b.example.bank.example", "a@b.example"]),
    ],
)  # fmt: skip
def test_who_is_read(value: str, found: list[str]) -> None:
    assert authors(value) == found


@pytest.mark.parametrize(
    "value",
    [
        "ceo@ bank.example <a@b.example>", "ceo @bank.example <a@b.example>", "ceo@(x)bank.example <a@b.example>",
        "ceo(x)@bank.example <a@b.example>", '"ceo" @ bank.example <a@b.example>', '"ceo"@bank.example <a@b.example>',
        "@bank.example <a@b.example>", "a@b.example(x).bank.example <a@b.example>",
        "a@b.example .bank.example <a@b.example>", "a@b.example. bank.example <a@b.example>",
        "a@b.example (x) .bank.example <a@b.example>", "ceo@bank.example(x) <a@b.example>",
        '"x" =?utf-8?q?=40bank=2Eexample?= <a@b.example>', "=?utf-8?q?ceo=40bank.example x?= <a@b.example>",
        '"=?utf-8?q?=22?= ceo@bank.example =?utf-8?q?=22?=" <a@b.example>',
        "(=?utf-8?q?=29_ceo=40bank.example=2C_=28?=) a@b.example", "(a (b)) a@b.example",
        "=?utf-8?q?=0D=0A?= <a@b.example>", "a@b.example b@b.example", "a@b.example <>", "a@b.example >",
        "<a@b.example> x", "<a@\uff20b.example>", "<a@b.example\uff0cc>", "a@@b.example", "<a @b.example>",
    ],
)  # fmt: skip
def test_what_readers_read_differently(value: str) -> None:
    with pytest.raises(Unreadable):
        authors(value)
    header = f"From: {value}\r\n".encode()
    assert author_domain(header, scan(header)[0]) == ""
    assert first_address(value) == ""


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b'\\"' * 400_000,  # at once: each mark could begin a quoted string that has no end
        b"(" * 400_000 + b" a@b.example",
        "=?\u00e9?q?abc?= <a@b.example>".encode(),
        b"a@b.example, " * 40_000 + b"a@b.example",
        "a\u0301\u0316".encode() * 100_000 + b" <a@b.example>",
    ],
    ids=["open quote", "open comments", "charset", "many", "combining marks"],
)
def test_values_that_are_not_read(value: bytes) -> None:
    header = b"From: " + value + b"\r\n"
    with pytest.raises(Unreadable):
        author_addresses(header, scan(header)[0])
    assert author_domain(header, scan(header)[0]) == ""


@pytest.mark.parametrize(
    ("value", "domain"),
    [
        ("News <news@Example.ORG>", "example.org"),
        ("news@example.org", "example.org"),
        ('"Last, First" <a@b.example>, c@d.example', "b.example"),
        ("Gr\u00fc\u00dfe <a@b.example>", "b.example"),
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?= <a@b.example>", "b.example"),
        ("a@b.example <a@b.example>", "b.example"),
        ("c@d.example <a@b.example>", ""),
        ("nobody", ""),
        ("", ""),
        ("<>", ""),
        ("a@b@c.example", ""),
        ("a@b..example", ""),
        ("Group: a@b.example;", ""),
        ("x <a@b\u00fccher.example>", "xn--bcher-kva.example"),
        ("a@b.example\r\nFrom: a@b.example", ""),
    ],
)
def test_the_authors_domain(value: str, domain: str) -> None:
    header = f"Subject: x\r\nFrom: {value}\r\n".encode()
    assert author_domain(header, scan(header)[0]) == domain


def test_tokens_are_the_value() -> None:
    value = 'A "b,\\" c" (d (e) \\) f)\r\n <g@h>, i'
    assert "".join(token.text for token in tokens(value)) == value


def test_addresses_as_they_are_written() -> None:
    assert [each.address for each in mailboxes("A.B@C.example, <d@E.example>")] == [
        "A.B@C.example",
        "d@E.example",
    ]
    assert first_address("News <X@Y.example>") == "X@Y.example"
    assert first_address('"A, B"\r\n <X@Y.example>,\n\tc@d.example') == "X@Y.example"
    assert first_address("a\n@b.example") == first_address("a@b.example\nFrom: c@d.example") == ""
    assert first_address("(" * 10_000) == first_address("") == first_address("x" * 100_000) == ""
