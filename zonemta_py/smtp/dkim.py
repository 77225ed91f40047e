"""DKIM signatures, relaxed/relaxed: body hash, signed fields, the signature field. Pure, without keys.

Source: RFC 6376 (sections 3.4.2, 3.4.4, 3.5, 3.7, 5.4.2), RFC 8463 (Ed25519), RFC 8301 (SHA-256 only).
"""

import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Sequence

from zonemta_py.core.codec import Struct
from zonemta_py.smtp.headers import Field

_CRLF = b"\r\n"
EMPTY_LINES_AT_ONCE = 4096  # bounds the memory for a long run of empty lines


class BodyHash:
    """SHA-256 of a body in relaxed form; the stream may be cut anywhere.

    The relaxed form has one space for each run of white space, none at line ends, no empty lines at the
    end of the body, and CRLF at the end of the last line. Source: RFC 6376 section 3.4.4.
    """

    __slots__ = ("_blank", "_empty_lines", "_held", "_sha")

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._held = b""  # white space or CR at the end of the data, which may belong to a line end
        self._empty_lines = 0  # line ends that are not hashed yet, as the body may end here
        self._blank = True

    def feed(self, data: bytes) -> None:
        """Hash the next bytes of the body."""
        data = self._held + data if self._held else data
        kept = data.rstrip(b" \t\r")
        self._held = data[len(kept) :]
        if b"\t" in kept:
            kept = kept.replace(b"\t", b" ")
        while b"  " in kept:  # log2 of the longest run; ten times faster than a regular expression
            kept = kept.replace(b"  ", b" ")
        if b" \r\n" in kept:
            kept = kept.replace(b" \r\n", _CRLF)
        lines = kept.rstrip(_CRLF)
        ended = (len(kept) - len(lines)) // 2
        if not lines:
            self._empty_lines += ended
            return
        self._end_lines()
        self._sha.update(lines)
        self._blank = False
        self._empty_lines = ended

    def _end_lines(self) -> None:
        while self._empty_lines:
            count = min(self._empty_lines, EMPTY_LINES_AT_ONCE)
            self._sha.update(_CRLF * count)
            self._empty_lines -= count

    def digest(self) -> bytes:
        """The hash of the whole body. Call it once, after the last ``feed``."""
        if not self._blank:
            self._sha.update(_CRLF)
        return self._sha.digest()


class SignatureTerms(Struct, frozen=True):
    """Parameters of a signature. ``algorithm``: rsa-sha256 or ed25519-sha256. Times are unix seconds."""

    algorithm: str
    domain: str
    selector: str
    time_s: int
    expires_s: int | None = None


def signing_domain(author: str, domains: Collection[str]) -> str:
    """The domain of ``domains`` that signs for the author: the same or the nearest parent domain, or empty."""
    while author:
        if author in domains:
            return author
        author = author.partition(".")[2]
    return ""


def signed_names(
    fields: Sequence[Field], names: Collection[str], oversign: Collection[str]
) -> list[str]:
    """The h= list: each of ``names`` once per occurrence, and those in ``oversign`` once more.

    A field that is added later breaks the signature of an oversigned name.
    """
    found = Counter(field.name.decode("ascii", "replace") for field in fields)
    listed: list[str] = []
    for name in names:
        times = found[name] + (1 if name in oversign else 0)
        listed += [name] * times
    return listed


def unsigned_field(terms: SignatureTerms, listed: Sequence[str], body_hash: bytes) -> bytes:
    """The DKIM-Signature field up to and including ``b=``, folded, without the final CRLF."""
    expires = f" x={terms.expires_s};" if terms.expires_s is not None else ""
    names = ":\r\n\t ".join(":".join(listed[at : at + 5]) for at in range(0, len(listed), 5))
    return (
        f"DKIM-Signature: v=1; a={terms.algorithm}; c=relaxed/relaxed; d={terms.domain};\r\n"
        f"\ts={terms.selector}; t={terms.time_s};{expires}\r\n"
        f"\th={names};\r\n"
        f"\tbh={b64encode(body_hash).decode()};\r\n"
        "\tb="
    ).encode()


def to_sign(header: bytes, fields: Sequence[Field], listed: Sequence[str], unsigned: bytes) -> bytes:
    """The bytes to sign: the listed fields, the last occurrence of a name first, and ``unsigned``."""
    remaining: dict[str, list[Field]] = {}
    for field in fields:
        remaining.setdefault(field.name.decode("ascii", "replace"), []).append(field)
    parts: list[bytes] = []
    for name in listed:
        if remaining.get(name):
            field = remaining[name].pop()
            parts.append(_relaxed(field.name, header[field.value : field.end]))
    name_, _, value = unsigned.partition(b":")
    parts.append(_relaxed(name_.lower(), value).removesuffix(_CRLF))
    return b"".join(parts)


def _relaxed(name: bytes, value: bytes) -> bytes:
    value = value.replace(_CRLF, b"").replace(b"\t", b" ")
    while b"  " in value:
        value = value.replace(b"  ", b" ")
    return name + b":" + value.strip(b" ") + _CRLF


def signed_field(unsigned: bytes, signature: bytes) -> bytes:
    """The complete DKIM-Signature field, with CRLF."""
    text = b64encode(signature)
    return unsigned + b"\r\n\t ".join(text[at : at + 70] for at in range(0, len(text), 70)) + _CRLF
