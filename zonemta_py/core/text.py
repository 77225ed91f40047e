"""Text of strangers as a person or a program may see it. Pure.

A terminal obeys control characters (ESC, also U+009B, which is one character), and marks such as U+202E turn the direction
of writing, so that an address is read as another one. Both are *not printable* for Python, as are line separators, surrogates
and code points that have no meaning. ``escaped`` is for people, ``escaped_json`` for programs, ``one_line`` for logs.
"""

import re
from collections.abc import Iterable

SECRET = "[secret]"

_URL = re.compile(
    r"""([A-Za-z][A-Za-z0-9+.\-]*://)([^/?#\s'"]*)([^?#\s'"]*)(?:\?([^#\s'"]*))?(#[^\s'"]*)?"""
)
_QUERY_VALUE = re.compile(r"=[^&;]*")
_URL_TO_END = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)([^/?#]*)(.*)", re.DOTALL)
# A name such as api_key or Authorization, but of no file, and what is between it and its value.
_SECRET_NAME = (
    r"(?:token|passw|passphrase|secret|credential|authorization|cookie|(?:api|access|private|auth)[_-]?key)"
    r"(?![\w.-]*(?:file|path|dir)\b)[\w.-]*"
)
_NAMED_SECRET = re.compile(rf"({_SECRET_NAME}(?:\s*[=:]|\s)\s*)\S.*", re.IGNORECASE | re.DOTALL)
_OPTION_OF_SECRET = re.compile(rf"-[\w.-]*{_SECRET_NAME}", re.IGNORECASE)


def escaped(text: str, keep: str = "") -> str:
    """``text`` with an escape for each character that is not printable, except those in ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def on_page(value: object) -> object:
    """``value`` as a template writes it: a text that is no markup is ``escaped``, but for line ends and tabs."""
    return escaped(value, "\n\t") if type(value) is str else value


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escaped_json(text: str) -> str:
    """A JSON document with escapes for the characters that are not printable: the same document for a parser."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _json_escape(c) for c in text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def one_line(text: str, instead: str = " ") -> str:
    """``text`` with ``instead`` for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else instead for c in text)


def without_secrets(text: str) -> str:
    """``text`` without the name, password, fragment and values of the query of each URL in it: tokens are in all of them."""
    return _URL.sub(_public_url, text) if "://" in text else text


def _public_url(url: re.Match[str]) -> str:
    scheme, authority, path, query, _ = url.groups()
    shown = f"{scheme}{authority.rpartition('@')[2]}{path}"
    if not query:
        return shown
    return f"{shown}?{_QUERY_VALUE.sub('=' + SECRET, query) if '=' in query else SECRET}"


def url_as_name(text: str) -> str:
    """``text`` with the scheme and host of a URL in it, and nothing that comes after: no one has meant it as a name."""
    return _URL_TO_END.sub(_origin, text) if "://" in text else text


def _origin(url: re.Match[str]) -> str:
    scheme, authority, rest = url.groups()
    # An @ behind the host: a password with a slash in it, which no URL has.
    return (
        f"{scheme}…" if "@" in rest else f"{scheme}{authority.rpartition('@')[2]}{'…' if rest else ''}"
    )


def arguments_without_secrets(arguments: Iterable[str]) -> tuple[str, ...]:
    """The arguments of a command without what follows a name such as ``password`` in them, or is given after ``--password``.

    The rest of such an argument is left out: it may be a command line of its own. URLs are as ``without_secrets`` has them.
    """
    shown: list[str] = []
    is_secret = False
    for each in arguments:
        shown.append(SECRET if is_secret else _NAMED_SECRET.sub(rf"\1{SECRET}", without_secrets(each)))
        is_secret = bool(_OPTION_OF_SECRET.fullmatch(each))
    return tuple(shown)
