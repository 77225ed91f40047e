"""DKIM: the canonical forms against dkimpy's, and signatures that it verifies."""

import hashlib

import dkim as dkimpy
from dkim.canonicalization import Relaxed
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp import dkim
from zonemta_py.smtp.headers import scan

lines = st.lists(
    st.sampled_from([b"", b" ", b"\t ", b"word", b"two  words", b" indented\t", b"x" * 40]), max_size=8
)


@given(lines, st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_a_body_at_any_split(body: list[bytes], ended: bool, cuts: list[int]) -> None:
    """The hash does not depend on how the body is cut, and is what the relaxed form's is."""
    message = b"\r\n".join(body) + (b"\r\n" if ended else b"")
    found = dkim.BodyHash()
    at = 0
    for cut in [*sorted(cuts), len(message)]:
        found.feed(message[at:cut])
        at = max(at, cut)
    on_the_wire = message if not message or message.endswith(b"\r\n") else message + b"\r\n"
    expected = Relaxed.canonicalize_body(on_the_wire)
    assert found.digest() == hashlib.sha256(expected).digest()


def test_a_million_empty_lines_cost_no_memory() -> None:
    found = dkim.BodyHash()
    for _ in range(100):
        found.feed(b"\r\n" * 10_000)
    assert found._empty_lines == 1_000_000
    found.feed(b"x")
    assert found.digest() == hashlib.sha256(b"\r\n" * 1_000_000 + b"x\r\n").digest()


def test_who_signs_for_whom() -> None:
    """The nearest domain above the author's; never a mere suffix."""
    domains = {"example.org", "news.example.org"}
    assert dkim.signing_domain("news.example.org", domains) == "news.example.org"
    assert dkim.signing_domain("a.b.example.org", domains) == "example.org"
    assert dkim.signing_domain("notexample.org", domains) == ""
    assert dkim.signing_domain("", domains) == ""


def test_every_occurrence_and_one_more() -> None:
    header = b"From: a\r\nTo: b\r\nTo: c\r\nX: d\r\n"
    assert dkim.signed_names(scan(header)[0], ("from", "to", "cc", "date"), ("from", "cc")) == [
        "from",
        "from",
        "to",
        "to",
        "cc",
    ]


field_text = st.text(st.sampled_from(list("ab \tç:;<>@=")), max_size=60)


@given(st.lists(field_text, min_size=1, max_size=5))
def test_headers_as_dkimpy_has_them(values: list[str]) -> None:
    """The relaxed form of folded, empty and odd fields."""
    for value in values:
        folded = value.replace("  ", " \r\n\t ").encode()
        ours = dkim._relaxed(b"subject", folded + b"\r\n")
        ((name, theirs),) = Relaxed.canonicalize_headers([(b"Subject", folded + b"\r\n")])
        assert ours == name + b":" + theirs
    assert dkimpy
