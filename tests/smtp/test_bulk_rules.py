"""The rules for bulk mail: what a letter that keeps them all has, and what each lacks when it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.bulk_rules import ERROR, INFO, WARNING, Finding, Signing, check_message

LETTER = b"""\
From: News <news@news.acme.example>
To: a@b.example
Subject: Spring
Date: Mon, 23 Nov 2026 08:00:00 +0000
Message-ID: <1@acme.example>
List-Unsubscribe: <https://acme.example/u/1>, <mailto:u@acme.example>
List-Unsubscribe-Post: List-Unsubscribe=One-Click
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary=x

--x
Content-Type: text/plain

Hello
--x
Content-Type: text/html

<p>Hello</p>
--x--
"""
SIGNING = Signing(("acme.example",), ("from", "list-unsubscribe", "list-unsubscribe-post"))


def changed(old: bytes, new: bytes) -> bytes:
    assert old in LETTER
    return LETTER.replace(old, new)


def without(name: bytes) -> bytes:
    lines = [line for line in LETTER.split(b"\n") if not line.startswith(name + b":")]
    assert len(lines) < LETTER.count(b"\n") + 1
    return b"\n".join(lines)


def test_a_letter_that_keeps_all_rules() -> None:
    assert check_message(LETTER, "news.acme.example", SIGNING) == []
    signed = b"DKIM-Signature: v=1; d=acme.example; s=x\n" + LETTER
    assert check_message(signed) == []


@pytest.mark.parametrize(
    ("letter", "level", "rule", "text"),
    [
        (without(b"From"), ERROR, "from", "no From field"),
        (b"From: x@acme.example\n" + LETTER, ERROR, "from", "2 From fields"),
        (changed(b"news.acme.example>", b"other.example>"), ERROR, "from", "expected news.acme.example"),
        (
            changed(b"news.acme.example>", b"other.example>"),
            ERROR,
            "dkim",
            "for other.example: there is no key",
        ),
        (changed(b"@news.acme.example", b"@acme"), ERROR, "from", "not a domain of the Internet"),
        (
            changed(b"Subject: Spring", b"Subject: Spring\nSubject: b"),
            ERROR,
            "fields",
            "subject appears 2 times",
        ),
        (without(b"Subject"), WARNING, "fields", "no Subject"),
        (without(b"To"), WARNING, "fields", "no To"),
        (without(b"Date"), INFO, "fields", "no Date; the relay adds one"),
        (without(b"Message-ID"), INFO, "fields", "no Message-Id; the relay adds one"),
        (changed(b"Spring", "Frühling".encode()), WARNING, "fields", "subject: 8-bit characters"),
        (without(b"List-Unsubscribe"), ERROR, "unsubscribe", "no List-Unsubscribe with"),
        (changed(b"<https://acme.example/u/1>, ", b""), ERROR, "unsubscribe", "no https link"),
        (without(b"List-Unsubscribe-Post"), ERROR, "unsubscribe", "no List-Unsubscribe-Post"),
        (changed(b"=One-Click", b"=Two"), ERROR, "unsubscribe", "not List-Unsubscribe=One-Click"),
        (
            changed(
                b"Hello\n--x\nContent-Type: text/html", b"H" * 999 + b"\n--x\nContent-Type: text/html"
            ),
            ERROR,
            "lines",
            "a line has 999 bytes",
        ),
        (changed(b"text/plain", b"text/x-other"), WARNING, "content", "HTML without a plain text part"),
        (changed(b"<p>", b"<p>\n" * 30_000), WARNING, "size", "Gmail clips"),
        (LETTER.partition(b"\n\n")[0] + b"\n\n", WARNING, "content", "no text"),
    ],
)
def test_a_broken_rule(letter: bytes, level: str, rule: str, text: str) -> None:
    found = check_message(letter, "news.acme.example", SIGNING)
    assert [each for each in found if (each.level, each.rule) == (level, rule) and text in each.text], (
        found
    )


def test_signatures() -> None:
    """Without a configuration it is only known whether the letter has one; related domains are aligned."""
    assert [each.level for each in check_message(LETTER)] == [INFO]
    other = b"DKIM-Signature: v=1; a=rsa-sha256; d=esp.example; s=x\n" + LETTER
    assert "signed for esp.example only" in check_message(other)[0].text
    assert check_message(b"DKIM-Signature: v=1; d=mail.news.acme.example\n" + LETTER) == []
    unsigned = check_message(LETTER, "", Signing(("acme.example",), ("from",)))
    assert [each.rule for each in unsigned] == ["unsubscribe"]
    assert "list-unsubscribe, list-unsubscribe-post" in unsigned[0].text


def test_8_bit_text_needs_a_character_set() -> None:
    found = check_message("From: a@acme.example\n\ngrün\n".encode())
    assert (
        Finding(
            ERROR, "content", "8-bit characters without a Content-Type that names their character set"
        )
        in found
    )


@given(st.binary(max_size=300))
def test_any_input(data: bytes) -> None:
    """Findings, never an exception; errors first."""
    levels = [each.level for each in check_message(data)]
    assert levels == sorted(levels, key=(ERROR, WARNING, INFO).index)
