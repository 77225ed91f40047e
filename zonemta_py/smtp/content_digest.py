"""A digest of a message that stays the same when its client builds it anew, and differs when a reader would see another one.

It is of the envelope sender, the fields From and Subject, and the body, decoded: a client that repeats a submission may choose
other MIME boundaries, Content-IDs, transfer encodings, encoded words and foldings, another Date and Message-ID.

States of the parser: header of a part ◀─▶ body of a part, in a stack of multiparts (``_delimiters``).

Invariants: the digest does not depend on the cuts of the stream; memory does not depend on the size; time is proportional to it. What is
not understood, or too deep, is hashed as it is, so that two messages that a reader can tell apart differ.

Caller: ``intake.message.MessageData`` for messages with a submission key. Example: the same letter with another boundary has the same digest.

Source: RFC 2045 to 2047.
"""

import re
from binascii import Error, a2b_base64, a2b_qp, b2a_base64
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.headers import Field, HeaderTooLarge, scan

DIGEST_BYTES = 16
DEPTH_MAX = 10  # of multiparts; a deeper one is hashed as it is
PARTS_MAX = 1000  # what is behind them is hashed as it is
PART_HEADER_MAX = 16_384  # bytes; a longer one is hashed as it is
DELIMITER_MAX = 300  # bytes of a line that may be a boundary (RFC 2046: 70, and white space)
FIELD_MAX = 2000  # characters of a Content-Type that are searched for its boundary
HELD_MAX = 65_536  # bytes of text that are searched for the end of a word
NEWLINES_AT_ONCE = 4096

_BOUNDARY = re.compile(r'(?i)boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))')
_PARAMETER = re.compile(r'(?i)[;\s](charset|name(?:\*\d*)*)\s*=\s*(?:"([^"]*)"|([^\s;"]*))')
_USUAL_CHARSETS = ("", "us-ascii", "utf-8")
_CID = re.compile(rb"(?<=[\"'(=])cid:[^\s\"'<>()\[\]]+")  # where a reference begins
_ENDS_WORD = b" \n\t\"'<>"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64 = bytes(set(range(256)) - set(_BASE64 + b"="))
_USUAL_IN_BASE64 = _BASE64 + b"= \t\r\n"


class _Part(NamedTuple):
    """A part, by its header. ``parameters``: its name, and its character set unless it is usual.

    ``delimiter``: of its parts, empty for one that has none.
    """

    media_type: str
    parameters: str
    encoding: str
    disposition: str
    delimiter: bytes


class ContentDigest:
    """The digest of one message; its body is fed in order, cut anywhere. Memory stays the same for any size."""

    def __init__(self, sender: str, header: bytes, fields: Sequence[Field]) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self._add(sender)
        for name, drop in ((b"from", '"'), (b"subject", "")):
            for field in fields:
                if field.name == name:
                    text = " ".join(decode(_value(header, field), lenient=True).split())
                    self._add(text.replace(drop, "") if drop else text)
            self._add("")
        self._delimiters: list[bytes] = []  # of the multiparts around, the outermost first
        self._in_header = False  # of a part
        self._parts = 0
        self._held = b"\r\n"  # a delimiter begins with the end of the line before it
        self._leaf = _Leaf(self._hash, "", "text/plain")
        self._begin(_part_of(header, fields))

    def _add(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "surrogatepass") + b"\0")

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        data, at = self._held + data, 0
        self._held = b""
        while at >= 0:
            data, at = self._header(data, at) if self._in_header else self._body(data, at)
        self._held = data

    def digest(self) -> str:
        """The digest (hex) of the whole message. Call it once, after the last ``feed``."""
        self._leaf.feed(self._held)
        self._leaf.end()
        return self._hash.hexdigest()

    def _body(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Hash up to the next delimiter: the data and where it begins; -1: more is needed after these data."""
        at = start
        while self._delimiters and (at := data.find(b"\r\n--", at)) >= 0:
            end = data.find(b"\r\n", at + 4, at + DELIMITER_MAX)
            if end < 0 and len(data) - at < DELIMITER_MAX:
                self._leaf.feed(data[start:at])
                return data[at:], -1
            depth, is_last = (
                self._depth_of(data[at + 2 : end].rstrip(b" \t")) if end > 0 else (-1, False)
            )
            if depth < 0:
                at = max(at + 4, end)
                continue
            self._parts += 1
            if self._parts > PARTS_MAX:
                self._delimiters.clear()
                break
            self._leaf.feed(data[start:at])
            self._leaf.end()
            del self._delimiters[depth + (not is_last) :]
            self._in_header = not is_last
            if is_last:
                self._leaf = _Leaf(self._hash, "", "text/plain")
            return data, end
        kept = 3 if self._delimiters else 0  # may be the beginning of a delimiter
        cut = max(start, len(data) - kept)
        self._leaf.feed(data[start:cut])
        return data[cut:], -1

    def _depth_of(self, line: bytes) -> tuple[int, bool]:
        """The depth of the multipart that a line delimits, -1 for none; and True if the line ends it."""
        for depth in range(len(self._delimiters) - 1, -1, -1):
            if line == self._delimiters[depth]:
                return depth, False
            if line == self._delimiters[depth] + b"--":
                return depth, True
        return -1, False

    def _header(self, data: bytes, start: int) -> tuple[bytes, int]:
        """Read the header of a part, which begins with the end of the line before it."""
        end = data.find(b"\r\n\r\n", start)
        if end < 0:
            if len(data) - start <= PART_HEADER_MAX:
                return data[start:], -1
            self._begin(_part_of(b"", ()))
            return data, start
        block = data[start + 2 : end + 2]
        try:
            fields, stop = scan(block)
        except HeaderTooLarge:
            fields, stop = [], 0
        if stop < len(block):  # not a header only: all of it is content
            self._begin(_part_of(b"", ()))
            return data, start
        self._begin(_part_of(block, fields))
        return data, end + 2

    def _begin(self, part: _Part) -> None:
        """Begin a part whose header has ended."""
        self._in_header = False
        self._add(part.media_type + part.parameters)
        self._add(part.disposition)
        if part.delimiter and len(self._delimiters) < DEPTH_MAX:
            self._delimiters.append(part.delimiter)
            self._leaf = _Leaf(self._hash, "", "text/plain")  # what is before its first part
        else:
            self._leaf = _Leaf(self._hash, part.encoding, part.media_type)


class _Leaf:
    """Hash of the decoded text of a part without parts. Line ends are LF, and those at its end do not count."""

    def __init__(self, into: blake2b, encoding: str, media_type: str) -> None:
        self._into = into
        self._encoding = encoding
        self._is_html = media_type == "text/html"
        self._skipped = 2  # the end of the line before it
        self._encoded = self._text = b""  # held until more comes
        self._junk: blake2b | None = None  # what is not base64 where base64 should be
        self._newlines = self._size = 0

    def feed(self, data: bytes) -> None:
        if self._skipped:
            skipped, self._skipped = self._skipped, max(0, self._skipped - len(data))
            data = data[skipped:]
        if not data:
            return
        if self._encoding == "base64":
            data = self._base64(data)
        elif self._encoding == "quoted-printable":
            data = self._encoded + data
            cut = data.rfind(b"\n") + 1
            data, self._encoded = a2b_qp(data[:cut]), data[cut:]
        self._write(data)

    def end(self) -> None:
        """Hash what is left; the text is complete."""
        rest, self._encoded = self._encoded, b""
        if self._encoding == "base64":
            self._write(_last_of_base64(rest))
        elif rest:
            self._write(a2b_qp(rest))
        if self._is_html:
            self._is_html = False
            self._write(_CID.sub(b"cid:", self._text))
        if self._junk is not None:
            self._into.update(self._junk.digest())
        self._into.update(b"\0%d\0" % self._size)

    def _base64(self, data: bytes) -> bytes:
        junk = data.translate(None, _USUAL_IN_BASE64)
        if junk:
            self._junk = self._junk or blake2b(digest_size=DIGEST_BYTES)
            self._junk.update(junk)
        data = self._encoded + data.translate(None, _NOT_BASE64)
        decoded = b""
        if b"=" in data:  # it ends what is before it, and more may follow
            *ended, data = data.split(b"=")
            decoded = b"".join(
                a2b_base64(each[: len(each) & ~3]) + _last_of_base64(each[len(each) & ~3 :])
                for each in ended
            )
        cut = len(data) & ~3
        self._encoded = data[cut:]
        return decoded + a2b_base64(data[:cut])

    def _write(self, data: bytes) -> None:
        """Hash decoded bytes, without references to Content-IDs: a client makes new ones."""
        if b"\r" in data:
            data = data.replace(b"\r", b"")
        if self._is_html:
            data = self._text + data
            # What ends a word is held with the next one: a reference begins behind it.
            cut = max(0, *(data.rfind(end) for end in _ENDS_WORD))
            if len(data) - cut > HELD_MAX:
                cut = len(data)
            data, self._text = data[:cut], data[cut:]
            if b"cid:" in data:
                data = _CID.sub(b"cid:", data)
        text = data.rstrip(b"\n")
        if not text:
            self._newlines += len(data)
            return
        while self._newlines:
            count = min(self._newlines, NEWLINES_AT_ONCE)
            self._into.update(b"\n" * count)
            self._newlines -= count
            self._size += count
        self._into.update(text)
        self._size += len(text)
        self._newlines = len(data) - len(text)


def _last_of_base64(text: bytes) -> bytes:
    """The bytes of less than four characters; ``text`` itself if it is malformed."""
    try:
        decoded = a2b_base64(text + b"=" * (-len(text) % 4))
    except Error:  # one character alone
        return text
    return decoded if b2a_base64(decoded, newline=False).rstrip(b"=") == text else text


def _value(header: bytes, field: Field) -> str:
    """The unfolded, trimmed value of a field; bytes that are not UTF-8 stay apart."""
    raw = header[field.value : field.end]
    return raw.replace(b"\r\n", b"").decode("utf-8", "surrogateescape").strip()


def _part_of(header: bytes, fields: Sequence[Field]) -> _Part:
    values = {field.name: _value(header, field)[:FIELD_MAX] for field in reversed(fields)}
    content_type = values.get(b"content-type", "text/plain")
    media_type = content_type.partition(";")[0].strip().lower()
    delimiter = b""
    if media_type.startswith("multipart/") and (found := _BOUNDARY.search(content_type)):
        delimiter = b"--" + (found[1] or found[2]).rstrip().encode("utf-8", "surrogateescape")
    encoding = values.get(b"content-transfer-encoding", "").strip().lower()
    parameters = ""
    for name, quoted, plain in _PARAMETER.findall(content_type):
        value = quoted or plain
        if name.lower() != "charset":
            parameters += f";{name.lower()}={value}"
        elif value.lower() not in _USUAL_CHARSETS:
            parameters += f";charset={value.lower()}"
    return _Part(media_type, parameters, encoding, values.get(b"content-disposition", ""), delimiter)
