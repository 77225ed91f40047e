"""The authors that a message names in From and Sender, read so that no receiver reads another. Pure.

What receivers read differently is refused: several From fields, groups, routes, two ``@``, quotes, comments
or white space within an address. An address in a display name counts as an author too, unless it is quoted.
Source: RFC 5322 sections 3.4 and 3.6.2, RFC 2047.
"""

import re
from collections.abc import Sequence
from email.errors import MessageError
from email.header import decode_header, make_header
from unicodedata import normalize

from zonemta_py.smtp.address import normalise
from zonemta_py.smtp.headers import Field, field_value

_ADDRESS = r"[A-Za-z0-9._+=\-]+@[A-Za-z0-9.\-]+"
# The common form: an address, or a name without specials and an address in brackets.
_PLAIN = re.compile(rf"(?:({_ADDRESS})|[A-Za-z0-9 .'_\-]*<({_ADDRESS})>)\Z")
# A quoted string, a comment, or one other character. From left to right, as each may look like a part of another.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\([^()\\"@]*\)|[^"()\\]')
_IN_BRACKETS = re.compile(r"([^<>]*)<([^<>]*)>\s*\Z")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ENCODED_WORD = re.compile(r"=\?[^?\s]+\?[BbQq]\?[^?\s]*\?=")
_AROUND_ADDRESS = "<>()[]\"'.,;:"


class Unreadable(ValueError):
    """A header that does not name its authors so that all receivers read the same; the text says why."""


def author_addresses(header: bytes, fields: Sequence[Field]) -> list[str]:
    """The normalised addresses in From, and in Sender if it is present. Raises Unreadable."""
    authors: list[str] = []
    for name in ("From", "Sender"):
        values = [field_value(header, field) for field in fields if field.name == name.lower().encode()]
        if len(values) > 1:
            raise Unreadable(f"the message has {len(values)} {name} fields")
        if not values:
            if name == "From":
                raise Unreadable("the message has no From field")
            continue
        try:
            found = _addresses(values[0])
        except ValueError as exc:
            raise Unreadable(f"{name}: {exc}") from exc
        if not found:
            raise Unreadable(f"{name} names no address")
        authors += found
    return authors


def _addresses(value: str) -> list[str]:
    """The addresses of a mailbox list. Raises ValueError."""
    plain = _PLAIN.match(value)
    if plain is not None:
        return [normalise(plain[1] or plain[2])]
    tokens = _tokens(value)
    if tokens is None or _CONTROLS.search(value):
        raise ValueError("quotes, comments or control characters are not well-formed")
    # A quotation mark stands for each quoted string, a space for each comment.
    text = "".join({'"': '"', "(": " "}.get(token[0], token) for token in tokens)
    if ":" in text or ";" in text:
        raise ValueError("a group or a route is not allowed")
    parts = [part.strip(" \t") for part in text.split(",")]
    return [address for part in parts if part for address in _mailbox(part)]


def _tokens(value: str) -> list[str] | None:
    """The tokens of ``value``; None if it has anything else. An open quotation mark ends the search, which would begin at each."""
    tokens, at = [], 0
    while at < len(value):
        token = _TOKEN.match(value, at)
        if token is None:
            return None
        tokens.append(token[0])
        at = token.end()
    return tokens


def _mailbox(text: str) -> list[str]:
    """The address of one mailbox, and those in its display name. Raises ValueError."""
    brackets = _IN_BRACKETS.match(text)
    name, address = ("", text) if brackets is None else (brackets[1], brackets[2].strip(" \t"))
    if normalize("NFKC", address).count("@") != 1 or re.search(r'["\s]|=\?', address):
        raise ValueError(f"'{address}' is not one address")
    words = normalize("NFKC", _ENCODED_WORD.sub(_decoded, name)).split()
    named = [word.strip(_AROUND_ADDRESS) for word in words if "@" in word.strip("@")]
    return [normalise(each) for each in (*named, address)]


def _decoded(word: re.Match[str]) -> str:
    try:
        return str(make_header(decode_header(word[0])))
    except (MessageError, LookupError, ValueError) as exc:
        raise ValueError(f"{word[0]} cannot be decoded") from exc
