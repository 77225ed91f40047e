"""The place of a merge field in a text, and the form of a value there. Pure.

A text is searched for ``{{column}}`` and ``{{column|default}}`` after it was decoded. In a URL, where editors escape
braces, ``%7B%7Bcolumn%7D%7D`` is the same field. The place of each field gives the function that writes its value:
in HTML it is escaped, in a URL percent-encoded, also in ``url()`` of a style; elsewhere in a style all that could end a
name, a string or a declaration, or begin a function, is a hexadecimal escape.

Source: RFC 3986 section 2; the HTML standard, sections 13.2.5 (states of the tokenizer) and 4.12.1.3 (text in scripts);
CSS Syntax Module Level 3, section 4.
"""

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from html import escape, unescape
from urllib.parse import quote, unquote

from zonemta_py.core.errors import LocalError

Write = Callable[[str], str]

_FIELD = re.compile(r"\{\{([^{}]*)\}\}|%7B%7B((?:[^%{}<>\s\"']|%20|%7C){1,80})%7D%7D", re.IGNORECASE)
MARK = "\0"  # stands for a field where its place is looked for


class MergeError(LocalError, ValueError):
    """A merge field cannot be replaced: there is no value for it, or its value cannot stand in its place."""


class UnusableValue(MergeError):
    """The value of one recipient cannot stand in its place; others may."""


@dataclass(frozen=True, slots=True)
class MergeField:
    """A field of a message. ``default``: the value where that of the recipient is empty; None: there is none."""

    name: str
    default: str | None = None

    def __str__(self) -> str:
        return f"{{{{{self.name}}}}}"

    def value(self, row: Mapping[str, str | None]) -> str:
        """The value for a recipient. Raises MergeError."""
        value = row.get(self.name)
        if self.default is not None and (not value or value.isspace()):
            return self.default
        if value is None:
            raise MergeError(f"there is no value for '{self.name}'")
        return value


def split_fields(text: str) -> list[str | MergeField]:
    """Literal texts and fields in turn; the first and the last are literals, so the fields have the odd places."""
    if "{{" not in text and "%7" not in text:
        return [text]
    pieces: list[str | MergeField] = []
    at = 0
    literal = ""
    for found in _FIELD.finditer(text):
        literal += text[at : found.start()]
        at = found.end()
        inside = found[1] if found[1] is not None else unquote(found[2])
        name, has_default, default = unescape(inside).partition("|")
        name = " ".join(name.split())
        if not name:  # `{{}}` is text
            literal += found[0]
            continue
        pieces += [literal, MergeField(name, " ".join(default.split()) if has_default else None)]
        literal = ""
    return [*pieces, literal + text[at:]]


def marked(pieces: list[str | MergeField]) -> str:
    """The text of ``pieces`` with MARK in the place of each field."""
    return MARK.join(str(piece).replace(MARK, " ") for piece in pieces[::2])


# ---- The forms of a value.


def as_text(value: str) -> str:
    """The value in plain text: the line ends are CRLF."""
    if "\n" in value or "\r" in value or "\0" in value:
        value = value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
        return value.replace("\n", "\r\n")
    return value


def as_line(value: str) -> str:
    """The value in one line of text."""
    return " ".join(value.split())


def as_html(value: str) -> str:
    """The value in the text of an element, or in an attribute in quotes."""
    return escape(as_text(value))


def _as_unquoted(value: str) -> str:
    return _references(as_line(value))


def _references(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._~:/?#@\-]", lambda found: f"&#{ord(found[0])};", text)


def as_url_part(value: str) -> str:
    """The value in a URL, percent-encoded."""
    return quote(value.strip(), safe="", errors="replace")


def as_url(value: str) -> str:
    """The value at the beginning of a URL: it is the URL, or all of it up to its path. Raises UnusableValue for a script."""
    url = value.strip()
    if re.match(r"[\s\x00-\x20]*(?:java|vb)script\s*:", url, re.IGNORECASE):
        raise UnusableValue(f"'{url[:40]}' is not a link")
    return quote(url, safe=":/?#[]@!$&'()*+,;=%~-._", errors="replace")


def _as_html_url(value: str) -> str:
    return escape(as_url(value))


def _as_unquoted_url(value: str) -> str:
    return _as_unquoted(as_url(value))


def _as_json(value: str) -> str:
    text = json.dumps(value.encode("utf-8", "replace").decode())[1:-1]
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def as_css(value: str) -> str:
    """The value in a name, a string or a comment of a style; the space ends the escape."""
    return re.sub(r"[^A-Za-z0-9 #%.,\-]", lambda found: f"\\{ord(found[0]):x} ", as_line(value))


def _as_css_url(value: str) -> str:
    return re.sub(r"['();]", lambda found: f"%{ord(found[0]):X}", as_url(value))


def _as_html_css_url(value: str) -> str:
    return escape(_as_css_url(value))


def _as_unquoted_css(value: str) -> str:
    return _references(as_css(value))


def _as_unquoted_css_url(value: str) -> str:
    return _references(_as_css_url(value))


def as_calendar(value: str) -> str:
    """The value in a text of iCalendar or vCard (RFC 5545 section 3.3.11)."""
    text = re.sub(r"([\\;,])", r"\\\1", value.replace("\0", " "))
    return re.sub(r"\r\n|\r|\n", r"\\n", text)


# ---- The place of a field.

_LINK = re.compile(r"(?:(?:https?|ftp)://|mailto:)[^\s<>\"()\[\]]*\Z", re.IGNORECASE)
LINK_MAX = 2000  # characters before a field that may belong to its URL
_SCHEME_ONLY = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://\Z")


def url_writer(before: str) -> Write:
    """The writer of a value after ``before``, the beginning of a URL with MARK for fields."""
    literal = before.replace(MARK, "").strip()
    return as_url if not literal or _SCHEME_ONLY.match(literal) else as_url_part


def text_writers(pieces: list[str | MergeField], plain: Write) -> list[Write | None]:
    """The writer of each field in a text without markup: ``plain``, if it does not stand in a URL."""
    text = marked(pieces)
    writers: list[Write | None] = []
    at = text.find(MARK)
    while at >= 0:
        link = _LINK.search(text, max(0, at - LINK_MAX), at)
        writers.append(plain if link is None else url_writer(link[0]))
        at = text.find(MARK, at + 1)
    return writers


_MARKUP = re.compile(r"<(?:(!--(?!\[if\b))|([A-Za-z\0])|(?=[/!?]))", re.IGNORECASE)
_TAG_NAME = re.compile(r"[^\s/>]*")
_ATTRIBUTE = re.compile(
    r"[\s/]*([^\s=>/\"']+|[\"'=])(?:\s*=\s*(\"[^\"]*\"?|'[^']*'?|[^\s>\"'][^\s>]*)?)?"
)
_TAG_END = re.compile(r"[\s/]*>")
_RAW_END = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style")}
_URL_ATTRIBUTES = frozenset(
    ("href", "src", "action", "formaction", "background", "cite", "poster", "data", "longdesc", "xlink:href", "srcset")
)  # fmt: skip
_HTML_URLS: dict[tuple[Write, bool], Write] = {
    (as_url, True): _as_html_url, (as_url, False): _as_unquoted_url,
    (as_url_part, True): as_url_part, (as_url_part, False): as_url_part,
}  # fmt: skip

_STRING = r"(?:\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)"
# The places of fields in a style; its groups are URLs, with their quotes.
_CSS = re.compile(
    rf"/\*.*?(?:\*/|\Z)|\burl\(\s*({_STRING}|[^)]*)|@import\s*({_STRING})|{_STRING}|{MARK}",
    re.IGNORECASE | re.DOTALL,
)
_STYLE_ATTRIBUTE: dict[tuple[Write, bool], Write] = {
    (as_css, True): as_css, (as_css, False): _as_unquoted_css,
    (as_url, True): _as_html_css_url, (as_url, False): _as_unquoted_css_url,
    (as_url_part, True): as_url_part, (as_url_part, False): as_url_part,
}  # fmt: skip


def css_writers(text: str) -> Iterator[Write]:
    """The writer of each field in a style with MARK for fields."""
    return (_as_css_url if write is as_url else write for write in _css_places(text))


def _css_places(text: str) -> Iterator[Write]:
    """The place of each field: ``as_css``, or ``as_url`` and ``as_url_part`` in a URL."""
    for found in _CSS.finditer(text):
        url = found[1] or found[2]
        if url is None:
            yield from [as_css] * found[0].count(MARK)
            continue
        url = url.removeprefix(url[0]) if url[0] in "\"'" else url
        at = url.find(MARK)
        while at >= 0:
            yield url_writer(url[:at])
            at = url.find(MARK, at + 1)


def html_writers(pieces: list[str | MergeField]) -> list[Write | None]:
    """The writer of each field in HTML; None for a field in a place where no value can stand."""
    return list(_html_writers(marked(pieces)))


def _html_writers(text: str) -> Iterator[Write | None]:
    at = 0
    while (found := _MARKUP.search(text, at)) is not None:
        yield from [as_html] * text.count(MARK, at, found.start())
        at = found.start()
        if found[1]:  # what a comment has is escaped as text: it cannot end it
            end = text.find("-->", found.end())
            end = len(text) if end < 0 else end + 3
            yield from [as_html] * text.count(MARK, at, end)
        elif found[2]:
            end = yield from _tag_writers(text, at + 1)
        else:
            end = text.find(">", at)
            end = len(text) if end < 0 else end + 1
            yield from [None] * text.count(MARK, at, end)
        at = end
    yield from [as_html] * text.count(MARK, at)


def _tag_writers(text: str, at: int) -> Generator[Write | None, None, int]:
    """The writers in the tag whose name begins at ``at``, and in the text of a script or a style sheet behind it; returns its end."""
    name = _TAG_NAME.match(text, at)
    assert name is not None
    yield from [None] * name[0].count(MARK)
    at, kind = name.end(), ""
    while (end := _TAG_END.match(text, at)) is None:
        attribute = _ATTRIBUTE.match(text, at)
        if attribute is None or attribute.end() == at:
            return len(text)
        key, value = attribute[1].lower(), attribute[2] or ""
        yield from [None] * key.count(MARK)
        yield from _attribute_writers(key, value)
        kind = value.strip("\"'").lower() if key == "type" else kind
        at = attribute.end()
    at = end.end()
    raw_end = _RAW_END.get(name[0].lower())
    if raw_end is None:
        return at
    closing = raw_end.search(text, at)
    stop = closing.start() if closing is not None else len(text)
    is_json = kind.endswith("json") and name[0].lower() == "script"
    if name[0].lower() == "style":
        yield from css_writers(text[at:stop])
    else:
        yield from [_as_json if is_json else None] * text.count(MARK, at, stop)
    return stop


def _attribute_writers(key: str, value: str) -> Iterator[Write | None]:
    if MARK not in value:
        return
    is_quoted = value[0] in "\"'"
    text = value[1:] if is_quoted else value
    if key == "style":
        yield from (_STYLE_ATTRIBUTE[write, is_quoted] for write in _css_places(unescape(text)))
        return
    at = text.find(MARK)
    while at >= 0:
        if key.startswith("on"):
            yield None
        elif key in _URL_ATTRIBUTES:
            yield _HTML_URLS[url_writer(unescape(text[:at])), is_quoted]
        else:
            yield as_html if is_quoted else _as_unquoted
        at = text.find(MARK, at + 1)
