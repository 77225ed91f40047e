"""Encoded words in header fields: ``=?utf-8?q?caf=C3=A9?=``. Pure, in time proportional to the text.

The ``email`` package needs quadratic time for many beginnings of a word, and Python has codecs, such as punycode, that
need it for the content: only character sets of mail are decoded.

Source: RFC 2047 sections 2, 4, 5 and 6.2; RFC 2231 section 5 (a language behind the character set).
"""

import re
from base64 import b64decode
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
_BEGIN, _END = "=?utf-8?q?", "?="


def decode(text: str) -> str:
    """``text`` with its encoded words decoded, wherever they are. Raises ValueError for one that has no meaning.

    White space between two of them is not a part of the text, and a character may begin in one and end in the next.
    """
    if "=?" not in text:
        return text
    parts: list[str] = []
    held: list[bytes] = []  # the content of the last encoded words, which have one character set
    held_charset, at = "", 0
    for word in _WORD.finditer(text):
        between, charset = text[at : word.start()], _charset(word[1])
        is_apart = not held_charset or bool(between.strip(" \t\r\n"))
        if held and (is_apart or charset != held_charset):
            parts.append(b"".join(held).decode(held_charset))
            held = []
        if is_apart:
            parts.append(between)
        held.append(_content(word[2], word[3]))
        held_charset, at = charset, word.end()
    if held:
        parts.append(b"".join(held).decode(held_charset))
    return "".join([*parts, text[at:]])


def _charset(name: str) -> str:
    """The name of a codec. Raises ValueError for what is no character set of mail."""
    lower = name.lower()
    if lower not in _CHARSETS and not _FAMILIES.match(lower):
        raise ValueError(f"the character set {name} is not known")
    return _ALIASES.get(lower, lower)


def _content(encoding: str, text: str) -> bytes:
    try:
        data = text.encode("ascii")
        if encoding in "qQ":
            return a2b_qp(data, header=True)
        return b64decode(data, validate=True)
    except (Error, UnicodeEncodeError) as exc:
        raise ValueError(f"an encoded word cannot be decoded: {exc}") from exc


def encode(text: str) -> str:
    """``text`` as one or more encoded words, which a line end and a space separate."""
    words: list[str] = []
    word = ""
    for char in text:
        part = "".join(_Q[byte] for byte in char.encode("utf-8", "replace"))
        if len(_BEGIN) + len(word) + len(part) + len(_END) > WORD_MAX:
            words.append(word)
            word = ""
        word += part
    return "\r\n ".join(f"{_BEGIN}{each}{_END}" for each in [*words, word])


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
            # White space between two encoded words is not shown: beside another one it is encoded, too.
            before = spaces[first - 1] if first and _is_word(words[first - 1]) else ""
            behind = spaces[at] if at < len(spaces) and _is_word(words[at + 1]) else ""
            parts.append(encode(f"{before}{run}{behind}".replace("\r\n", "")))
        parts += spaces[at : at + 1]
        at += 1
    return "".join(parts)


def _is_word(text: str) -> bool:
    return text.startswith("=?") and text.endswith("?=")
