r"""Text of strangers as a person or a program may see it, patterns to search in it, and durations as text. Pure.

A terminal obeys control characters (ESC, also U+009B, which is one character), and marks such as U+202E turn the direction
of writing, so that an address is read as another one. Both are *not printable* for Python, as are line separators, surrogates
and code points that have no meaning. ``escaped`` is for people, ``escaped_json`` for programs, ``one_line`` for logs.

Invariants: the three leave no character that is not printable, ``without_secrets`` no secret of a URL; a ``PatternSet`` needs time in
proportion to the text, whatever the patterns are (RE2), and changes only once, when the first search compiles it.

Example: ``escaped("a\x1b[2J")`` is ``a\x1b[2J`` with the backslash written out, which clears no screen.

Source: Unicode Standard Annex 9 (direction marks); the syntax of RE2.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address

import re2

from zonemta_py.core import clock

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
    """``value`` as a template writes it: a text that is not markup is ``escaped``, but for line ends and tabs."""
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


# ---- Patterns in time proportional to the text, whatever they are; the only importer of google-re2.
#
# The syntax is RE2's: no look-around, no back references. Case does not matter.

MEMORY_MAX_BYTES = 1 << 20  # of the automaton of one set, which grows with the texts that it has seen
TOGETHER = 10  # patterns in one set: of all in one, each new text costs new states of all of them


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.max_mem = MEMORY_MAX_BYTES
    return options


def problem_of(pattern: str) -> str:
    """The reason that ``pattern`` cannot be used; empty when it can."""
    if not pattern.strip():
        return "an empty pattern matches every text"
    try:
        compiled = re2.compile(pattern, _options())
    except re2.error as exc:
        reason = exc.args[0] if exc.args else exc
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return "it matches an empty text, so every text" if compiled.search("") else ""


class PatternSet:
    """Patterns that are searched for at once. Raises ValueError for one that cannot be used.

    Compiled by the first search: 40 ms for 400 patterns.
    """

    __slots__ = ("_are_compiled", "_sets")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._sets: list[re2.Set] = []
        self._are_compiled = False
        for first in range(0, len(patterns), TOGETHER):
            found = re2.Set.SearchSet(_options())
            for pattern in patterns[first : first + TOGETHER]:
                try:
                    found.Add(pattern)
                except re2.error as exc:
                    raise ValueError(f"pattern '{pattern}': {problem_of(pattern)}") from exc
            self._sets.append(found)

    def matches(self, text: str) -> list[int]:
        """The numbers of the patterns that ``text`` contains, in no order."""
        if not self._are_compiled:
            for each in self._sets:
                each.Compile()
            self._are_compiled = True
        return [
            first * TOGETHER + number
            for first, each in enumerate(self._sets)
            for number in each.Match(text) or ()
        ]


# ---- Suggestions for a name that does not exist.

SHOWN = 20


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """``no zone 'blk'; did you mean 'bulk'?``, else with the names that there are."""
    return f"no {kind} '{name}'; {meant(name, known)}"


def meant(name: str, known: Iterable[str]) -> str:
    """``did you mean 'bulk'?``, or ``there is bulk, default``."""
    names = sorted(known)
    close = [] if _is_address(name) else difflib.get_close_matches(name, names, 1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return f"there is {', '.join(names[:SHOWN]) or 'none'}{more}"


def _is_address(name: str) -> bool:
    """True if ``name`` is an IP address: all of them are similar, so none is suggested."""
    with suppress(ValueError):
        ip_address(name)
        return True
    return False


# ---- Durations as text, for commands and the page.


def ago(ms: int | None) -> str:
    """The age of a time, as text; empty without a time."""
    return span((clock.now_ms() - ms) / 1000) if ms else ""


def time_left(ms: int | None) -> str:
    """The duration until a time, as text; empty without a time."""
    if not ms:
        return ""
    left_s = (ms - clock.now_ms()) / 1000
    return span(left_s) if left_s > 0 else "now"


def span(seconds: float) -> str:
    """A duration in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{max(0, seconds):.0f}s"
