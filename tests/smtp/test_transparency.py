"""Dot-stuffing: cases from the RFC by hand, and any split by Hypothesis."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.transparency import DotDecoder, DotEncoder, LineCheck

lines = st.lists(
    st.sampled_from([b"", b".", b"..", b".x", b"a.b", b"x" * 30, b"\r", b"a\rb"]), max_size=8
)


@pytest.mark.parametrize(
    ("wire", "message", "rest"),
    [
        (b".\r\n", b"", b""),
        (b"\r\n.\r\n", b"\r\n", b""),
        (b"a\r\n.\r\n", b"a\r\n", b""),
        (b"..\r\n.\r\n", b".\r\n", b""),
        (b".x\r\n.\r\n", b"x\r\n", b""),
        (b"a\r\n..b\r\n.\r\nQUIT\r\n", b"a\r\n.b\r\n", b"QUIT\r\n"),
        (b".\r\nMAIL", b"", b"MAIL"),
        (b"a\r\n.\r\r\n.\r\n", b"a\r\n\r\r\n", b""),
    ],
)
def test_decode(wire: bytes, message: bytes, rest: bytes) -> None:
    """RFC 5321 4.5.2 by hand: any leading dot goes, CRLF.CRLF alone ends."""
    decoder = DotDecoder()
    assert decoder.feed(wire) == message
    assert decoder.done
    assert decoder.trailing == rest

    decoder, got = DotDecoder(), b""
    for at in range(len(wire) - len(rest)):
        got += decoder.feed(wire[at : at + 1])
    assert got == message
    assert decoder.done


@pytest.mark.parametrize(
    "wire",
    [
        b"a\n.\n",
        b"a\n.\r\n",
        b"a\r\n.\n",
        b"a\r.\r",
        b"a\r\n.\r",
        b"a\r.\r\n",
        b"a\r\n.\r\r\n",
        b"a\r\n\0.\r\n",
        b"a\n.\r",
    ],
)
def test_smuggled_ends_do_not_end(wire: bytes) -> None:
    """No look-alike of the final dot ends the data, and the look-alike is noticed."""
    decoder, check = DotDecoder(), LineCheck(1000)
    check.feed(decoder.feed(wire + b"x\r\n"))
    assert not decoder.done
    check.feed(decoder.feed(b"\r\n.\r\n"))
    check.finish()
    assert decoder.done
    assert check.bare or check.nul


def _stuff(message: bytes) -> bytes:
    """Dot-stuffing written another way: line by line."""
    return b"".join(
        b"." + line if line.startswith(b".") else line for line in message.splitlines(keepends=True)
    )


def _split(data: st.DataObject, wire: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    return [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


@given(lines, st.binary(max_size=6), st.data())
def test_any_split_decodes_the_same(given_lines: list[bytes], rest: bytes, data: st.DataObject) -> None:
    """However the stream is cut, message and left-over are the same."""
    message = b"".join(line + b"\r\n" for line in given_lines)
    wire = (
        b"".join((b"." if line.startswith(b".") else b"") + line + b"\r\n" for line in given_lines)
        + b".\r\n"
        + rest
    )
    decoder, out, after = DotDecoder(), b"", b""
    for piece in _split(data, wire):
        if decoder.done:
            after += piece
        else:
            out += decoder.feed(piece)
    assert decoder.done
    assert (out, decoder.trailing + after) == (message, rest)


@given(st.lists(st.sampled_from([b"", b".", b"..", b".x", b"a.b", b"x" * 30]), max_size=8), st.data())
def test_any_split_encodes_the_same(given_lines: list[bytes], data: st.DataObject) -> None:
    """However the body is chunked, the wire is the same, and decodes to the body."""
    message = b"".join(line + b"\r\n" for line in given_lines)
    encoder = DotEncoder()
    wire = b"".join(encoder.feed(piece) for piece in _split(data, message)) + encoder.finish()
    assert wire == _stuff(message) + b".\r\n"

    decoder = DotDecoder()
    assert decoder.feed(wire) == message
    assert decoder.done


def test_encoder_ends_the_last_line() -> None:
    """A body without its last CRLF gets one before the final dot."""
    encoder = DotEncoder()
    assert encoder.feed(b"a") + encoder.finish() == b"a\r\n.\r\n"
    assert DotEncoder().finish() == b".\r\n"


@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bb\r\n", b"\0", b"\xff"]), max_size=12),
    st.data(),
)
def test_line_check_agrees_with_the_plain_way(parts: list[bytes], data: st.DataObject) -> None:
    """Counting over blocks finds what looking at the whole finds."""
    whole = b"".join(parts)
    check = LineCheck(line_max=3)
    for piece in _split(data, whole):
        check.feed(piece)
    check.finish()
    without_pairs = whole.replace(b"\r\n", b"")
    assert check.bare == (b"\r" in without_pairs or b"\n" in without_pairs)
    assert check.nul == (b"\0" in whole)
    assert check.eight_bit == (b"\xff" in whole)
    longest = max(len(line) for line in whole.split(b"\n"))
    assert check.long == (longest > 3) or longest == 4  # a line's CR may or may not count


def test_every_short_message_at_every_cut() -> None:
    """All strings of up to six of CR, LF and another byte: a bare one is found wherever a block ends."""
    for length in range(7):
        for values in product(b"\r\nx", repeat=length):
            message = bytes(values)
            rest = message.replace(b"\r\n", b"")
            for cut in range(length + 1):
                check = LineCheck(100)
                check.feed(message[:cut])
                check.feed(message[cut:])
                check.finish()
                assert check.bare == (b"\r" in rest or b"\n" in rest), (message, cut)
