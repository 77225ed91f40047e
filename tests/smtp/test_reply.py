"""Replies: parsed at any split, bounded, printable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.errors import SessionLost
from zonemta_py.smtp.reply import LINE_MAX, Reply, ReplyReader, make_reply


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"250 ok\r\n", [Reply(250, "", "ok")]),
        (b"250\r\n", [Reply(250, "", "")]),
        (b"250 2.1.0 ok\n", [Reply(250, "2.1.0", "ok")]),
        (b"550-5.1.1 no\r\n550 5.1.1 such user\r\n", [Reply(550, "5.1.1", "no such user")]),
        (b"250-a\r\n250 b\r\n354 go\r\n", [Reply(250, "", "a b"), Reply(354, "", "go")]),
        (b"550 2.1.0 liar\r\n", [Reply(550, "", "2.1.0 liar")]),
        (b"451 4.7.1\x1b[31m red\r\n", [Reply(451, "4.7.1", "[31m red")]),
    ],
)
def test_whole_and_byte_by_byte(wire: bytes, expected: list[Reply]) -> None:
    """The same replies, however the network cuts them."""
    whole = list[Reply]()
    ReplyReader().feed(wire, whole)
    assert whole == expected

    reader, got = ReplyReader(), list[Reply]()
    for i in range(len(wire)):
        reader.feed(wire[i : i + 1], got)
    assert got == expected
    assert not reader.midway


@pytest.mark.parametrize(
    "wire", [b"hello\r\n", b"99 x\r\n", b"250" + b"x" * LINE_MAX, b"250-a\r\n" * 200, b"\r\n"]
)
def test_not_smtp(wire: bytes) -> None:
    """Data that are not a reply, or never end, end the session."""
    with pytest.raises(SessionLost):
        ReplyReader().feed(wire, [])


def test_replies_before_other_data_count() -> None:
    """The 250 to a message, and then an empty line: the message was delivered."""
    replies, reader = list[Reply](), ReplyReader()
    with pytest.raises(SessionLost):
        reader.feed(b"250 2.0.0 queued\r\n\r\n", replies)
    assert replies == [Reply(250, "2.0.0", "queued")]


@given(st.binary(max_size=300), st.data())
def test_garbage_never_does_anything_else(wire: bytes, data: st.DataObject) -> None:
    """Random bytes give replies or SessionLost."""
    reader, replies = ReplyReader(), list[Reply]()
    at = 0
    try:
        while at < len(wire):
            step = data.draw(st.integers(1, 50))
            reader.feed(wire[at : at + step], replies)
            at += step
    except SessionLost:
        pass
    assert all(200 <= reply.code < 600 for reply in replies)


def test_text_is_printable_and_bounded() -> None:
    """Nothing in a reply can break a log line or a report."""
    reply = make_reply(550, "5.1.1 a\r\nb\0c" + "x" * 5000)
    assert "\r" not in reply.text and "\n" not in reply.text and "\0" not in reply.text
    assert len(reply.text) <= 1024
    assert str(Reply(550, "5.1.1", "no")) == "550 5.1.1 no"


def test_no_answer_is_no_success() -> None:
    """Code 0 stands for an answer that never came."""
    lost = Reply(0, "4.4.2", "no answer to the final dot")
    assert not lost.positive
    assert not lost.completed
    assert not lost.permanent
