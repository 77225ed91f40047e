"""Encoded words in header fields: ``=?utf-8?q?caf=C3=A9?=``. Pure, in time proportional to the text.

The ``email`` package needs quadratic time for many beginnings of a word, and Python has codecs, such as punycode, that
need it for the content: only character sets of mail are decoded.

Source: RFC 2047 sections 2, 4, 5 and 6.2; RFC 2231 section 5 (a language behind the character set).
"""

import re
from base64 import b64decode, b64encode
from binascii import Error, a2b_qp

WORD_MAX = 75  # characters of an encoded word

_WORD = re.compile(r"=\?([^?*\s]{1,40})(?:\*[^?\s]{0,40})?\?([BbQq])\?([^?\s]*)\?=")
_CHARSETS = frozenset(
    ("ascii", "us-ascii", "utf-8", "utf8", "unicode-1-1-utf-8", "latin1", "latin-1", "koi8-r", "koi8-u", "gb2312",
     "gbk", "gb18030", "hz-gb-2312", "big5", "big5-hkscs", "shift-jis", "shift_jis", "sjis", "cp932", "euc-jp", "euc-kr",
     "ks-c-5601-1987", "ks_c_5601-1987", "iso-2022-jp", "iso-2022-kr", "tis-620", "macintosh", "cp437", "cp850", "cp866")
)  # fmt: skip
_FAMILIES = re.compile(r"(?:iso-?8859-(?:[1-9]|1[013456])|(?:windows|cp)-?(?:125[0-8]|874|949|950))\Z")
_ALIASES = {
    "ks_c_5601-1987": "euc-kr", "ks-c-5601-1987": "euc-kr", "unicode-1-1-utf-8": "utf-8", "hz-gb-2312": "hz",
    "macintosh": "mac-roman",
}  # fmt: skip
# Characters that stand for themselves in a phrase (RFC 2047 section 5, rule 3); a space is an underscore.
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/")
_Q = [chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in range(256)]
_Q[0x20] = "_"
_END = "?="


def decode(text: str, *, lenient: bool = False) -> str:
    """``text`` with its encoded words decoded, wherever they are. Raises ValueError for one that has no meaning; ``lenient``: it stays as it is.

    White space between two of them is not a part of the text, and a character may begin in one and end in the next.
    """
    if "=?" not in text:
        return text
    parts: list[str] = []
    held: list[bytes] = []  # the content of the last encoded words, which have one character set
    held_charset, at = "", 0

    def end_word() -> None:
        if held:
            parts.append(b"".join(held).decode(held_charset, "replace" if lenient else "strict"))
            held.clear()

    for word in _WORD.finditer(text):
        try:
            charset, content = _charset(word[1]), _content(word[2], word[3], lenient=lenient)
        except ValueError:
            if not lenient:
                raise
            continue
        between = text[at : word.start()]
        is_apart = not held_charset or bool(between.strip(" \t\r\n"))
        if is_apart or charset != held_charset:
            end_word()
        if is_apart:
            parts.append(between)
        held.append(content)
        held_charset, at = charset, word.end()
    end_word()
    return "".join([*parts, text[at:]])


def _charset(name: str) -> str:
    """The name of a codec. Raises ValueError for a name that is not a character set of mail."""
    lower = name.lower()
    if lower not in _CHARSETS and not _FAMILIES.match(lower):
        raise ValueError(f"the character set {name} is not known")
    return _ALIASES.get(lower, lower)


def _content(encoding: str, text: str, *, lenient: bool) -> bytes:
    try:
        data = text.encode("ascii")
        if encoding in "qQ":
            return a2b_qp(data, header=True)
        padding = b"=" * (-len(data) % 4) if lenient else b""
        return b64decode(data + padding, validate=True)
    except (Error, UnicodeEncodeError) as exc:
        raise ValueError(f"an encoded word cannot be decoded: {exc}") from exc


def words(text: str, *, in_base64: bool = False, most: int = WORD_MAX) -> list[str]:
    """``text`` as encoded words of whole characters, each of at most ``most`` characters."""
    begin = "=?utf-8?b?" if in_base64 else "=?utf-8?q?"
    room = most - len(begin) - len(_END)
    found: list[bytes] = []
    word, size = b"", 0
    for char in text:
        data = char.encode("utf-8", "replace")
        used = len(data) if in_base64 else sum(len(_Q[byte]) for byte in data)
        if size + used > (room // 4 * 3 if in_base64 else room):
            found.append(word)
            word, size = b"", 0
        word, size = word + data, size + used
    coded = (b64encode(each).decode() if in_base64 else _in_q(each) for each in [*found, word])
    return [f"{begin}{each}{_END}" for each in coded]


def _in_q(data: bytes) -> str:
    return "".join(_Q[byte] for byte in data)


def is_readable_in_q(text: str) -> bool:
    """True if more than two thirds of the bytes of ``text`` stand for themselves in quoted-printable."""
    data = text.encode("utf-8", "replace")
    return 3 * sum(len(_Q[byte]) > 1 for byte in data) < len(data)


def encode(text: str) -> str:
    """``text`` as one or more encoded words, which a line end and a space separate."""
    return "\r\n ".join(words(text))


def encode_text(text: str) -> str:
    """Unstructured ``text`` with encoded words for what is not ASCII; words in ASCII keep their bytes."""
    pieces = re.split(r"([ \t\r\n]+)", text)
    words, spaces = pieces[::2], pieces[1::2]
    parts: list[str] = []
    at = 0
    while at < len(words):
        first = at
        while not words[at].isascii() and at + 1 < len(words) and not words[at + 1].isascii():
            at += 1
        if words[first].isascii():
            parts.append(words[first])
        else:
            run = "".join(pieces[2 * first : 2 * at + 1])
            # White space between two encoded words is not shown: next to another one it is encoded, too.
            before = spaces[first - 1] if first and _is_word(words[first - 1]) else ""
            behind = spaces[at] if at < len(spaces) and _is_word(words[at + 1]) else ""
            parts.append(encode(f"{before}{run}{behind}".replace("\r\n", "")))
        parts += spaces[at : at + 1]
        at += 1
    return "".join(parts)


def _is_word(text: str) -> bool:
    return text.startswith("=?") and text.endswith("?=")
