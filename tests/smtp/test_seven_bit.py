"""Messages for peers without 8BITMIME: 7-bit, and the same parts after decoding."""

from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.smtp.seven_bit import NotConvertible, to_seven_bit

PLAIN = b"From: a@x.example\r\nSubject: =?utf-8?q?gr=C3=BCn?=\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n"


def split(message: EmailMessage) -> tuple[bytes, bytes]:
    header, _, body = message.as_bytes(policy=policy.SMTP.clone(cte_type="8bit")).partition(b"\r\n\r\n")
    return header + b"\r\n", body


def parts_of(header: bytes, body: bytes) -> list[tuple[str, bytes]]:
    """Type and decoded content of each part; line ends as LF."""
    message = message_from_bytes(header + b"\r\n" + body)
    return [
        (
            part.get_content_type(),
            cast(bytes, part.get_payload(decode=True) or b"").replace(b"\r\n", b"\n"),
        )
        for part in message.walk()
        if not part.is_multipart()
    ]


def test_a_text() -> None:
    header = PLAIN + b"Content-Transfer-Encoding: 8bit\r\nX-After: 1\r\n"
    head, body = to_seven_bit(header, "grün \r\n.\r\nFrom here\r\n".encode())
    assert head == PLAIN + b"X-After: 1\r\nContent-Transfer-Encoding: quoted-printable\r\n"
    assert body == b"gr=C3=BCn=20\r\n=2E\r\nFrom here\r\n"


def test_a_text_without_mime_fields() -> None:
    head, body = to_seven_bit(b"Subject: s\r\n", "grün\r\n".encode())
    assert head == b"Subject: s\r\nContent-Transfer-Encoding: quoted-printable\r\nMIME-Version: 1.0\r\n"
    assert body == b"gr=C3=BCn\r\n"


def test_parts_are_encoded_by_their_kind() -> None:
    message = EmailMessage(policy=policy.SMTP.clone(cte_type="8bit"))
    message["Subject"] = "s"
    message.set_content("grün\n", cte="8bit")
    message.add_alternative("<p>grün</p>\n", subtype="html", cte="8bit")
    message.add_attachment(b"\x00\xff" * 90, maintype="image", subtype="png", cte="base64")
    inner = EmailMessage(policy=policy.SMTP.clone(cte_type="8bit"))
    inner["Subject"] = "inner"
    inner.set_content("blau ü\n", cte="8bit")
    message.add_attachment(inner)
    header, body = split(message)
    body = body.replace(
        b"Content-Type: message/rfc822", b"Content-Type: message/rfc822\r\nX-Name: gr\xc3\xbcn"
    )
    assert not body.isascii()
    head, converted = to_seven_bit(header, body)
    assert head == header
    assert converted.isascii()
    assert parts_of(head, converted) == parts_of(header, body)
    assert converted.count(b"quoted-printable") == 3
    assert b"8bit" not in converted


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("Subject: grün", b"Subject: =?utf-8?q?gr=C3=BCn?=\r\n"),
        ("From: Jörg <j@x.example>", b"From: =?utf-8?q?J=C3=B6rg?= <j@x.example>\r\n"),
        ("Content-Type: text/plain; name=grün", None),
    ],
)
def test_fields_with_8_bit_values(field: str, expected: bytes | None) -> None:
    head, _ = to_seven_bit(field.encode() + b"\r\nMIME-Version: 1.0\r\n", b"plain\r\n")
    assert head.isascii()
    assert expected is None or head.startswith(expected)


def test_a_part_that_cannot_be_encoded() -> None:
    """UTF-8 in the name of a boundary has no 7-bit form."""
    header = b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="gr\xc3\xbcn"\r\n'
    body = b"--gr\xc3\xbcn\r\n\r\nx\r\n--gr\xc3\xbcn--\r\n"
    with pytest.raises(NotConvertible):
        to_seven_bit(header, body)


@given(st.binary(max_size=300), st.sampled_from(["8bit", "binary", "", "x-unknown"]))
def test_any_binary_part(content: bytes, encoding: str) -> None:
    header = b"MIME-Version: 1.0\r\nContent-Type: application/octet-stream\r\n"
    header += f"Content-Transfer-Encoding: {encoding}\r\n".encode() if encoding else b""
    head, body = to_seven_bit(header, content)
    assert head.isascii()
    assert body.isascii()


@given(st.binary(max_size=400), st.binary(max_size=400))
def test_any_bytes(header: bytes, body: bytes) -> None:
    """The result is 7-bit, or there is none."""
    try:
        head, converted = to_seven_bit(header + b"\r\n", body)
    except NotConvertible:
        return
    assert head.isascii()
    assert converted.isascii()


def test_white_space_before_a_colon() -> None:
    """The email package would take the fields behind it for the body."""
    header = b"Subject : hi\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n"
    body = "--x\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\né\r\n--x--\r\n"
    head, converted = to_seven_bit(header, body.encode())
    assert head == header
    assert parts_of(head.replace(b" :", b":"), converted) == [("text/plain", "é".encode())]


@pytest.mark.parametrize("odd", [b"Subject : x", b"no field"])
def test_a_part_with_an_odd_header(odd: bytes) -> None:
    body = b"--x\r\n" + odd + "\r\nContent-Type: text/plain\r\n\r\né\r\n--x--\r\n".encode()
    with pytest.raises(NotConvertible):
        to_seven_bit(b"Content-Type: multipart/mixed; boundary=x\r\n", body)


@pytest.mark.parametrize("control", [b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x85"])
def test_what_the_email_package_takes_for_a_line_end(control: bytes) -> None:
    """It is converted, or there is a reason why not; nothing else is raised."""
    for header in (b"Subject: x" + control + b"y: z\r\n", b"Subject: \xc3\xa9" + control + b"y: z\r\n"):
        try:
            head, body = to_seven_bit(header, "é\r\n".encode())
        except NotConvertible:
            continue
        assert head.isascii()
        assert body.isascii()


def test_a_long_field_takes_no_seconds() -> None:
    """A word before an address is not a name: each character that is not ASCII becomes a question mark."""
    head, _ = to_seven_bit("To: é ".encode() + b"a@b.example, " * 8000 + b"c@d.example\r\n", b"x\r\n")
    assert head.startswith(b"To: ? a@b.example, ")


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Type: multipart/mixed; boundary=x" + b"; a=b" * 1000 + b"\r\n",
        b"Content-Type: multipart/mixed; boundary=x\r\nContent-Disposition: x"
        + b"; a=b" * 1000
        + b"\r\n",
    ],
)
def test_structures_that_would_take_seconds(header: bytes) -> None:
    with pytest.raises(NotConvertible, match="too many parameters"):
        to_seven_bit(header, "\u00e9\r\n".encode())
    with pytest.raises(NotConvertible, match="too many parameters"):
        to_seven_bit(
            b"Content-Type: multipart/mixed; boundary=x\r\n",
            b"--x\r\n" + header + b"\r\n\xc3\xa9\r\n--x--\r\n",
        )


def test_authors_without_a_form_in_seven_bits() -> None:
    """A question mark in an address would make another one of it."""
    with pytest.raises(NotConvertible, match="authors"):
        to_seven_bit("From: j\u00f6rg@x.example\r\n".encode(), b"x\r\n")
    head, _ = to_seven_bit("From: a@b\u00fccher.example\r\n".encode(), b"x\r\n")
    assert head.startswith(b"From: a@xn--bcher-kva.example\r\n")


def test_fields_of_parts_keep_their_bytes() -> None:
    """The email package would fold them anew, in quadratic time."""
    field = b"X-Long: " + b"1 " * 40_000 + b"\r\n y\r\n"
    body = b"--x\r\n" + field + b"Content-Type: text/plain\r\n\r\n\xc3\xa9\r\n--x--\r\n"
    _, converted = to_seven_bit(b"Content-Type: multipart/mixed; boundary=x\r\n", body)
    assert field in converted
