"""Dialogues for a reader: no body, no secret, however the bytes come."""

import base64

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.text import SECRET
from zonemta_py.smtp.dialogue import LINE_MAX, UNREAD_MAX, DialogueLines, readable

PASSWORD = base64.b64encode(b"\0ann\0correct horse").decode()
BODY = b"Subject: private\r\n\r\nDATA of the reader\r\n..dotted\r\n250 not a reply\r\n"
STEPS = [  # who, what; a list of the lines that are shown
    ("S", b"220 mx ESMTP\r\n"),
    ("C", b"EHLO a\r\n"),
    ("S", b"250-mx\r\n250-AUTH PLAIN LOGIN\r\n250 PIPELINING\r\n"),
    ("C", f"AUTH PLAIN {PASSWORD}\r\n".encode()),
    ("S", b"535 5.7.8 no\r\n"),
    ("C", b"AUTH LOGIN\r\n"),
    ("S", b"334 VXNlcm5hbWU6\r\n"),
    ("C", b"YW5u\r\n"),
    ("S", b"334 UGFzc3dvcmQ6\r\n"),
    ("C", b"Y29ycmVjdCBob3JzZQ==\r\n"),
    ("S", b"235 2.7.0 ok\r\n"),
    ("C", b"MAIL FROM:<a@a.example>\r\nRCPT TO:<b@b.example>\r\nDATA\r\n"),
    ("S", b"250 ok\r\n250 ok\r\n354 go\r\n"),
    ("C", BODY + b".\r\nMAIL FROM:<c@a.example>\r\nRCPT TO:<d@b.example>\r\nDATA\r\n"),
    ("S", b"250 queued\r\n250 ok\r\n550 no\r\n503 no recipient\r\n"),
    ("C", b"QUIT\r\n"),
    ("S", b"221 bye\r\n"),
]
SHOWN = [
    "220 mx ESMTP", "EHLO a", "250-mx", "250-AUTH PLAIN LOGIN", "250 PIPELINING",
    f"AUTH PLAIN {SECRET}", "535 5.7.8 no", "AUTH LOGIN", "334 VXNlcm5hbWU6", SECRET, "334 UGFzc3dvcmQ6", SECRET,
    "235 2.7.0 ok", "MAIL FROM:<a@a.example>", "RCPT TO:<b@b.example>", "DATA", "250 ok", "250 ok", "354 go",
    f"[{len(BODY) + 3} bytes of message]", "MAIL FROM:<c@a.example>", "RCPT TO:<d@b.example>", "DATA",
    "250 queued", "250 ok", "550 no", "503 no recipient", "QUIT", "221 bye",
]  # fmt: skip


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_lines_do_not_depend_on_the_pieces(sizes: list[int]) -> None:
    lines, found, number = DialogueLines(), list[str](), 0
    for who, data in STEPS:
        while data:
            size = sizes[number % len(sizes)]
            number += 1
            piece, data = data[:size], data[size:]
            found += lines.client(piece) if who == "C" else lines.server(piece)
    assert found == SHOWN


@given(st.binary(max_size=300), st.binary(max_size=300), st.booleans(), st.booleans())
def test_any_bytes_are_lines_for_a_terminal(
    client: bytes, server: bytes, in_body: bool, in_secret: bool
) -> None:
    lines = DialogueLines(in_body=in_body, in_secret=in_secret)
    found = [*lines.client(client), *lines.server(server), *lines.client(b"\r\n.\r\n")]
    assert all(each.isprintable() and len(each) <= 4 * LINE_MAX + 1 for each in found)


def test_a_body_that_does_not_wait_is_not_shown() -> None:
    """A client that sends its message before the reply to DATA."""
    lines = DialogueLines()
    assert list(lines.client(b"DATA\r\nSubject: private\r\n\r\nx\r\n.\r\nQUIT\r\n")) == ["DATA"]
    assert list(lines.server(b"354 go\r\n")) == ["354 go"]
    assert list(lines.client(b"")) == ["[26 bytes of message]", "QUIT"]
    refused = DialogueLines()
    assert list(refused.client(b"DATA\r\nNOOP\r\n")) == ["DATA"]
    assert list(refused.server(b"554 no\r\n")) == ["554 no"]
    assert list(refused.client(b"")) == ["NOOP"]


def test_logins_that_do_not_wait_are_not_shown() -> None:
    for login in (
        b"AUTH LOGIN\r\nbmV3cw==\r\nc2VjcmV0\r\nNOOP\r\n",
        b"AUTH PLAIN\r\nAGFubgBwYXNz\r\nNOOP\r\n",
    ):
        lines = DialogueLines()
        found: list[str] = []
        found += lines.client(login)
        for _ in range(login.count(b"\n") - 2):
            found += [*lines.server(b"334 \r\n"), *lines.client(b"")]
        found += [*lines.server(b"235 ok\r\n"), *lines.client(b"")]
        assert found[-1] == "NOOP"
        assert not any(each in " ".join(found) for each in ("bmV3", "c2Vj", "AGFu"))
        assert found.count(SECRET) == login.count(b"\n") - 2


def test_a_body_behind_very_many_commands() -> None:
    """More than are remembered."""
    lines = DialogueLines()
    assert len(list(lines.client(b"RCPT TO:<a@b.example>\r\n" * 3000 + b"DATA\r\n"))) == 3001
    list(lines.server(b"250 ok\r\n" * 3000 + b"354 go\r\n"))
    assert list(lines.client(b"Subject: private\r\n.\r\n")) == ["[21 bytes of message]"]


def test_what_is_no_command_may_be_a_message() -> None:
    """A trace that began in the wrong moment, BDAT, or a client that sends its message after a refusal."""
    assert list(DialogueLines().client(b"my private line\r\n")) == ["[15 bytes]"]


def test_it_can_begin_in_the_middle() -> None:
    cut = DialogueLines(in_body=True)
    assert list(cut.client(b".\r\nmy private line\r\n")) == [], "a dot after a line that was cut"
    lines = DialogueLines()
    list(lines.server(b"250 of an earlier command\r\n354 of one that was not seen\r\n"))
    assert list(lines.client(b"private\r\n.\r\n")) == ["[12 bytes of message]"]
    assert list(DialogueLines(in_body=True).client(b"secret\r\n.\r\nQUIT\r\n")) == [
        "[11 bytes of message]",
        "QUIT",
    ]
    assert list(DialogueLines(in_secret=True).client(b"cGFzcw==\r\n")) == [SECRET]


def test_memory_is_bounded() -> None:
    lines = DialogueLines()
    for _ in range(10):
        assert list(lines.client(b"x" * UNREAD_MAX)) == []
        assert list(lines.server(b"x" * UNREAD_MAX)) == []
    assert len(lines._of_client) <= UNREAD_MAX
    assert len(lines._of_server) <= UNREAD_MAX


def test_readable() -> None:
    assert readable(b"a\x1b[2Jb\xff") == "a\\x1b[2Jb\\xff"
    assert readable(b"x" * 2000) == "x" * LINE_MAX + "…"
