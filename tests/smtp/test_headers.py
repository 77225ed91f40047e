"""The header block: found at any split, bounded, edited without touching the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.headers import (
    HEADER_MAX,
    LINE_MAX,
    NESTED_MAX,
    HeaderSplitter,
    HeaderTooLarge,
    field_value,
    fold,
    is_bounded,
    names_in,
    received,
    scan,
    without,
)


def _split_message(message: bytes, cuts: list[int]) -> tuple[bytes, bytes]:
    splitter, body = HeaderSplitter(), b""
    for a, b in zip([0, *cuts], [*cuts, len(message)], strict=True):
        body += splitter.feed(message[a:b])
    body += splitter.finish()
    return splitter.header, body


@pytest.mark.parametrize(
    ("message", "header", "body"),
    [
        (b"A: 1\r\n\r\nbody\r\n", b"A: 1\r\n", b"body\r\n"),
        (b"A: 1\r\nB: 2\r\n 3\r\n\r\n", b"A: 1\r\nB: 2\r\n 3\r\n", b""),
        (b"\r\nbody\r\n", b"", b"body\r\n"),
        (b"A: 1\r\n", b"A: 1\r\n", b""),
        (b"", b"", b""),
        (b"no header here\r\nat all\r\n", b"", b"no header here\r\nat all\r\n"),
        (b"A: 1\r\nstray line\r\n\r\nbody\r\n", b"A: 1\r\n", b"stray line\r\n\r\nbody\r\n"),
        (b" folded first\r\nA: 1\r\n\r\n", b"", b" folded first\r\nA: 1\r\n\r\n"),
        (b"From a@b Sat Jan\r\nA: 1\r\n\r\nx\r\n", b"A: 1\r\n", b"x\r\n"),
        (b"From a Mon\r\n>>From b: 00:1\r\nA: 1\r\n\r\n", b"A: 1\r\n", b""),
        (b"From a Mon\r\n\r\nx\r\n", b"", b"x\r\n"),
        (b"From a Mon", b"", b""),
        (b"From\ta\r\nA: 1\r\n\r\nx\r\n", b"A: 1\r\n", b"x\r\n"),
        (b">From a Sat Jan  3 01:05:34 1996\r\nA: 1\r\n\r\nx\r\n", b"A: 1\r\n", b"x\r\n"),
        (b"From a Mon\r\nFrom : b\r\n\r\n", b"From : b\r\n", b""),
        (b"From : b\r\n\r\n", b"From : b\r\n", b""),
        (b"A: 1\r\nFrom b Mon\r\n\r\n", b"A: 1\r\n", b"From b Mon\r\n\r\n"),
        (b"A: 1\r\n\r\n\r\nx\r\n", b"A: 1\r\n", b"\r\nx\r\n"),
        (b"A : 1\r\n\r\nx\r\n", b"A : 1\r\n", b"x\r\n"),
    ],
)
def test_split(message: bytes, header: bytes, body: bytes) -> None:
    """By hand, whole and byte by byte."""
    assert _split_message(message, []) == (header, body)
    assert _split_message(message, list(range(1, len(message)))) == (header, body)


pieces = st.sampled_from(
    [b"A: 1\r\n", b" x\r\n", b"B : 2\r\n", b"\r\n", b"text\r\n", b":\r\n", b"\xff: 1\r\n", b"\r", b"x"]
)


@given(st.lists(pieces, max_size=10), st.data())
def test_any_split_is_the_same(parts: list[bytes], data: st.DataObject) -> None:
    """However it arrives, the block and the body are the same, and nothing is lost."""
    message = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(message)), max_size=5)))
    header, body = _split_message(message, cuts)
    assert (header, body) == _split_message(message, [])
    assert message in (header + body, header + b"\r\n" + body, (header + body)[: len(message)])
    assert scan(header)[1] == len(header)


def test_what_is_behind_a_line_that_is_no_field() -> None:
    splitter = HeaderSplitter()
    splitter.feed(b"A: 1\r\nstray line\r\nBcc : x\r\n y: z\r\n\r\nD: 4\r\n")
    assert splitter.behind == b"stray line\r\nBcc : x\r\n y: z\r\n"
    assert names_in(splitter.behind) == {b"bcc", b"y"}


def test_too_large() -> None:
    """A header block has an end."""
    splitter = HeaderSplitter()
    with pytest.raises(HeaderTooLarge):
        for _ in range(HEADER_MAX // 1000 + 2):
            splitter.feed(b"X: " + b"y" * 995 + b"\r\n")


def test_a_body_without_any_header_is_not_held_back() -> None:
    """A megabyte of plain text is found to be a body, not a header that never ends."""
    splitter = HeaderSplitter()
    line = b"just text, no header\r\n"
    out = b""
    for _ in range(HEADER_MAX // len(line) + 10):
        out += splitter.feed(line)
    assert splitter.done
    assert splitter.header == b""
    assert out


def test_fields_and_removal() -> None:
    """Fields are found by name with their folded value, and removed without a trace."""
    block = b"Received: x\r\n\ty\r\nX-Sending-Zone:  bulk \r\nDate: z\r\n"
    fields, stop = scan(block)
    assert stop == len(block)
    assert [f.name for f in fields] == [b"received", b"x-sending-zone", b"date"]
    assert field_value(block, fields[0]) == "x\ty"
    assert field_value(block, fields[1]) == "bulk"
    assert without(block, [fields[1]]) == b"Received: x\r\n\ty\r\nDate: z\r\n"


def test_received() -> None:
    """The trace field names client, relay, id and a single recipient."""
    field = received(
        helo="client.example", client_ip="2001:db8::1", by="relay.example", protocol="ESMTPS",
        message_id="abc", recipient="a@b.c", date="Sat, 21 Nov 2026 08:00:00 +0000",
    )  # fmt: skip
    assert field == (
        b"Received: from client.example ([IPv6:2001:db8::1])\r\n\tby relay.example with ESMTPS id abc"
        b"\r\n\tfor <a@b.c>;\r\n\tSat, 21 Nov 2026 08:00:00 +0000\r\n"
    )


words = st.lists(st.integers(0, 1500).map(lambda length: b"x" * length), max_size=8)


@given(st.lists(st.tuples(words, st.sampled_from([b" ", b"\t", b"  "])), max_size=4))
def test_folding(fields: list[tuple[list[bytes], bytes]]) -> None:
    """Unfolded, nothing has changed; a line stays long only where it has no white space, or ends with it."""
    block = b"".join(b"Name:" + space + space.join(parts) + b"\r\n" for parts, space in fields)
    folded = fold(block)
    assert folded.replace(b"\r\n ", b" ").replace(b"\r\n\t", b"\t") == block
    assert len(scan(folded)[0]) == len(fields)
    assert scan(folded)[1] == len(folded)
    assert fold(folded) == folded
    for line in folded.split(b"\r\n"):
        assert len(line) <= LINE_MAX or len(line.split()) == 1
        assert line == b"" or line.strip() != b""


def test_a_line_without_white_space_stays() -> None:
    block = b"Subject:" + b"x" * 3000 + b"\r\n"
    assert fold(block) == block
    long = b"Subject: " + b"x" * 3000 + b" y\r\n"
    assert fold(long).split(b"\r\n")[1:] == [b" " + b"x" * 3000, b" y", b""]


def test_structures_that_are_bounded() -> None:
    part = b"Content-Type: multipart/mixed;\n\tboundary=x\n\n"
    assert is_bounded(part * NESTED_MAX + b"Content-Type: text/plain\n\n" * 1000)
    assert not is_bounded(part * (NESTED_MAX + 1))
    assert not is_bounded(b"content-type : text/plain; x\n" + b" ; a=b\n" * 1000)
    assert is_bounded(b"Subject: x\n" + b" ; a=b\n" * 1000)
