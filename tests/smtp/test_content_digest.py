"""The digest of a message: the same for one that is built anew, another one for what a reader would see differently."""

import time
from collections.abc import Iterator
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import make_msgid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.content_digest import PARTS_MAX, ContentDigest
from zonemta_py.smtp.headers import scan

TEXT = "Grüße,\r\n\r\n-- \r\n--not a boundary\r\nlong " + "word " * 60 + "\r\n.\r\nend \r\n\r\n"
SENDER = "s@a.example"


def digest(message: bytes, sender: str = SENDER, *cuts: int) -> str:
    header, _, body = message.partition(b"\r\n\r\n")
    header += b"\r\n"
    made = ContentDigest(sender, header, scan(header)[0])
    at = 0
    for cut in (*sorted(cuts), len(body)):
        made.feed(body[at:cut])
        at = max(at, cut)
    return made.digest()


def built(
    text: str = TEXT,
    subject: str = "Angebot für Ümit, " + "sehr " * 20 + "gut",
    cte: str = "base64",
    attached: bytes = bytes(range(256)) * 40,
    name: str = "Zoë, Team",
) -> bytes:
    """A message of text, HTML with an image, and an attachment: boundaries and Content-IDs are new each time."""
    message = EmailMessage(SMTP)
    message["From"] = f'"{name}" <news@a.example>'
    message["Subject"] = subject
    message["Date"] = time.ctime()
    message["Message-ID"] = make_msgid()
    message.set_content(text, cte=cte)
    cid = make_msgid()
    html = f"<p>{text}</p><img src='cid:{cid[1:-1]}'><b>after</b>"
    message.add_alternative(html, subtype="html", cte=cte)
    related = list(message.iter_parts())[1]
    assert isinstance(related, EmailMessage)
    related.add_related(b"image" * 99, "image", "png", cid=cid)
    message.add_attachment(attached, "application", "pdf", filename="a.pdf")
    return message.as_bytes()


def test_built_anew() -> None:
    """Other boundaries, Content-IDs and transfer encodings."""
    one = built()
    assert one != built()
    assert (
        digest(one)
        == digest(built())
        == digest(built(cte="quoted-printable"))
        == digest(built(cte="8bit"))
    )


def test_what_a_reader_sees() -> None:
    one = built()
    others = [
        built(text=TEXT + "x"), built(text=TEXT.replace("end", "END")), built(subject="x"), built(name="Zoe"),
        built(attached=bytes(range(256)) * 41), built(attached=bytes(range(255, -1, -1)) * 40),
        one.replace(b'filename="a.pdf"', b'filename="b.pdf"'), one.replace(b"application/pdf", b"application/zip"),
        one.replace(b"image/png", b"image/gif"), one.replace(b"news@a.example", b"new@a.example"),
    ]  # fmt: skip
    found = [digest(one), digest(one, "t@a.example"), *map(digest, others)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=", b"subject: =?UTF-8?B?R3LDvMOfZQ==?="),
        (b"Subject: =?utf-8?q?Gr=C3=BC?=\r\n =?utf-8?q?=C3=9Fe?= an alle", "Subject: Grüße\r\n\tan alle".encode()),
        (b"Subject: =?iso-8859-1?q?Gr=FC=DFe?=", "Subject:   Grüße ".encode()),
        (b'From: "Ann B" <a@a.example>', b"From: Ann\r\n B <a@a.example>"),
        (b"Subject: x\r\nDate: Mon, 1 Jan 2024 00:00:00 +0000\r\nMessage-ID: <1@a>\r\nX-Y: 1", b"Subject: x"),
        (b"Subject: x\r\nContent-Type: text/plain; charset=utf-8", b"Subject: x"),
    ],
)  # fmt: skip
def test_one_header_written_in_two_ways(one: bytes, other: bytes) -> None:
    body = b"\r\n\r\nhello\r\n"
    assert digest(one + body) == digest(other + body)
    assert digest(one + body) != digest(one + body + b"!")


@pytest.mark.parametrize(
    "pair",
    [
        (b"\r\n\r\nhello", b"\r\n\r\nhello\r\n\r\n"),
        (b"\r\n\r\nhello\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\naGVs\r\nbG8N\r\nCg=="),
        (b"\r\n\r\nhello\r\n", b"\r\nContent-Transfer-Encoding: Quoted-Printable\r\n\r\nhe=\r\nl=6Co"),
        (b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"),
    ],
)
def test_one_body_in_two_encodings(pair: tuple[bytes, bytes]) -> None:
    assert digest(b"Subject: x" + pair[0]) == digest(b"Subject: x" + pair[1])


MULTIPART = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
HTML = b"Content-Type: text/html\r\n\r\n"
PDF = MULTIPART + b"--b\r\nContent-Type: application/pdf; "
BASE64 = b"Content-Transfer-Encoding: base64\r\n\r\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"Subject: \xf0\xd2\xc9\xd7\xc5\xd4\r\n\r\nx", b"Subject: \xf3\xd4\xcf\xd0\xc1\xca\r\n\r\nx"),
        (b"From: \xe4 <a@a.example>\r\n\r\nx", b"From: \xf6 <a@a.example>\r\n\r\nx"),
        (HTML + b"<p>Your code is cid:4711</p>", HTML + b"<p>Your code is cid:9999</p>"),
        (HTML + b'<a href="https://x.example/?acid:4711">', HTML + b'<a href="https://x.example/?acid:9999">'),
        (HTML + b"cid:4711", HTML + b"cid:9999"),
        (b"Content-Type: text/plain; charset=koi8-r\r\n\r\n\xc1", b"Content-Type: text/plain; charset=latin1\r\n\r\n\xc1"),
        (b"Content-Type: text/plain; charset=koi8-r\r\n\r\n\xc1", b"Content-Type: text/plain\r\n\r\n\xc1"),
        (PDF + b"name=a.pdf\r\n\r\nA\r\n--b--", PDF + b"name=b.pdf\r\n\r\nA\r\n--b--"),
        (PDF + b"name*0=a; name*1=b\r\n\r\nA\r\n--b--", PDF + b"name*0=a; name*1=c\r\n\r\nA\r\n--b--"),
        (PDF + b'x=y;\r\n name="\xe4"\r\n\r\nA\r\n--b--', PDF + b'x=y;\r\n name="\xf6"\r\n\r\nA\r\n--b--'),
        (BASE64 + b"YQ==\r\nYg==", BASE64 + b"YQYg"),
    ],
)  # fmt: skip
def test_other_content(one: bytes, other: bytes) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    "text",
    [b"<img src='cid:%d@a'>", b'<img src="cid:%d@a">', b"<img src=cid:%d@a>", b"<p style='background:url(cid:%d@a)'>"],
)  # fmt: skip
def test_references_do_not_count(text: bytes) -> None:
    """Wherever the message is cut."""
    body = b"<p>hello</p>\r\n" + text
    one, other = HTML + body % 1, HTML + body % 22
    for cut in range(len(body)):
        assert digest(one, SENDER, cut) == digest(other)


@pytest.mark.parametrize("charset", [b"us-ascii", b'"UTF-8"', b"Utf-8"])
def test_usual_character_sets_do_not_count(charset: bytes) -> None:
    assert digest(b"Content-Type: text/plain; charset=" + charset + b"\r\n\r\nx") == digest(
        b"A: b\r\n\r\nx"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MULTIPART + b"no boundary: one\r\n", MULTIPART + b"no boundary: two\r\n"),
        (MULTIPART + b"--b\r\n\r\none\r\n", MULTIPART + b"--b\r\n\r\ntwo\r\n"),
        (MULTIPART + b"--b\r\none\r\n--b--\r\n", MULTIPART + b"--b\r\ntwo\r\n--b--\r\n"),
        (MULTIPART + b"--b\r\n\r\nx\r\n--b--\r\none", MULTIPART + b"--b\r\n\r\nx\r\n--b--\r\ntwo"),
        (MULTIPART + b"--b\r\n\r\nx\r\n--b\r\n\r\ny\r\n--b--", MULTIPART + b"--b\r\n\r\nx\r\ny\r\n--b--"),
        (b"Content-Transfer-Encoding: base64\r\n\r\nQQ!=", b"Content-Transfer-Encoding: base64\r\n\r\nQQ?="),
        (b"Content-Transfer-Encoding: base64\r\n\r\nQQQQB", b"Content-Transfer-Encoding: base64\r\n\r\nQQQQC"),
        (b"Content-Transfer-Encoding: base64\r\n\r\nQQ==QQ==", b"Content-Transfer-Encoding: base64\r\n\r\nQQ==QR=="),
        (b"Content-Type: multipart/mixed\r\n\r\none", b"Content-Type: multipart/mixed\r\n\r\ntwo"),
        (b"A: 1\r\n\r\na\r\n\r\nb", b"A: 1\r\n\r\na\r\nb"),
        (MULTIPART + b"--b\r\n\r\nx\r\n" * (PARTS_MAX + 5) + b"one", MULTIPART + b"--b\r\n\r\nx\r\n" * (PARTS_MAX + 5) + b"two"),
    ],
)  # fmt: skip
def test_what_is_malformed_counts_too(one: bytes, other: bytes) -> None:
    assert digest(one) != digest(other)


PIECES = st.lists(
    st.sampled_from(
        [b"--b", b"--b--", b"--c", b"--c--", b"\r\n", b"\r\n\r\n", b"-", b" ", b"=3D", b"=\r\n", b"QUJD", b"Q", b"=",
         b"cid:x@y", b'"', b"a" * 299, b"a" * 302, b"Content-Transfer-Encoding: base64\r\n", b"Content-Type: text/html\r\n",
         b"Content-Transfer-Encoding: quoted-printable\r\n", b"Content-Type: multipart/mixed; boundary=c\r\n", b"x\n"]
    ),
    max_size=30,
)  # fmt: skip


@given(PIECES, st.lists(st.integers(0, 600), max_size=12))
def test_cut_anywhere(pieces: list[bytes], cuts: list[int]) -> None:
    message = MULTIPART + b"".join(pieces)
    assert digest(message, SENDER, *cuts) == digest(message)


@given(st.lists(st.integers(0, 30_000), max_size=30))
def test_a_real_message_cut_anywhere(cuts: list[int]) -> None:
    assert digest(MESSAGE, SENDER, *cuts) == digest(MESSAGE)


MESSAGE = built(cte="quoted-printable")


def hostile(size: int) -> Iterator[bytes]:
    for text in (
        b"\r\n--b\r\n\r\n",
        b"\r\n--",
        b"\r\n--c\r\n",
        b"=",
        b"cid:",
        b"\r\n--b--",
        b"\n",
        b"A: =?a?q?x\r\n",
    ):
        yield MULTIPART + text * size
    html = b"Content-Type: text/html\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    yield html + b"cid:" * size
    yield html + b"=\r\n" * size
    yield b"Subject: " + b"=?a?q?x" * size + b"\r\n\r\n"
    yield b"Subject: " + b"=?utf-8?q?x?= " * size + b"\r\n\r\n"
    yield b"From: " + b"?= " * size + b"\r\n\r\n"
    yield b"Content-Type: multipart/mixed; " + b"boundary " * size + b"\r\n\r\n"
    nested = b"".join(
        b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (n, n + 1) for n in range(size)
    )
    yield b"Content-Type: multipart/mixed; boundary=b0\r\n\r\n" + nested


def test_linear_time() -> None:
    """Four times the input takes no more than about four times the time."""
    for small, large in zip(hostile(5_000), hostile(20_000), strict=True):
        times = []
        for message in (small, large):
            began_s = time.process_time()
            digest(message, SENDER, *range(0, len(message), 16_384))
            times.append(time.process_time() - began_s)
        assert times[1] < 0.3 + 10 * times[0], small[:80]
