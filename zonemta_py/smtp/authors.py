"""Mailboxes in address fields, and the authors that a message names, read so that no receiver reads another. Pure.

It is the only reader of address fields: for the rule of senders, DKIM, reports, and the 7-bit form of a field. What
receivers read differently is refused: several From fields, groups, routes, two ``@``, quotes, comments or white space
within an address or beside an ``@``. An address in a display name counts as an author too, unless it is quoted.

Source: RFC 5322 sections 3.2.2 (comments), 3.4, 3.6.2 and 4.4 (obsolete forms), RFC 2047.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from unicodedata import normalize

from zonemta_py.smtp.address import domain_of, normalise
from zonemta_py.smtp.encoded_words import decode
from zonemta_py.smtp.headers import Field, field_value

VALUE_MAX = 8192  # characters of From or Sender; longer ones are not read

_ADDRESS = r"[A-Za-z0-9._+=\-]+@([A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*)"
# The common form: an address, or a name without specials and an address in brackets.
_PLAIN = re.compile(rf"(?:({_ADDRESS})|[A-Za-z0-9 .'_\-]*<({_ADDRESS})>)\Z")
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")|([ \t\r\n]+)|([<>,:;@])|([^ \t\r\n"()<>,:;@\\]+)', re.DOTALL)
_IN_COMMENT = re.compile(r"[()]|\\.", re.DOTALL)
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FOLD = re.compile(r"\r?\n(?=[ \t])")
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)

QUOTED, SPACE, SPECIAL, WORD, COMMENT = range(1, 6)


class Unreadable(ValueError):
    """A field that does not name its mailboxes so that all receivers read the same; the text says why."""


class AddressToken(NamedTuple):
    """``kind``: QUOTED, COMMENT (with its quotes or parentheses), SPACE, SPECIAL (one of ``<>,:;@``) or WORD."""

    kind: int
    text: str


class Mailbox(NamedTuple):
    """``address``: as it is written. ``named``: the normalised addresses in its display name."""

    address: str
    named: tuple[str, ...]


def tokens(value: str) -> list[AddressToken]:
    """The tokens of an address field, which together are ``value``. Raises Unreadable.

    An open quotation mark or comment ends the search, which would begin at each otherwise.
    """
    found: list[AddressToken] = []
    at = 0
    while at < len(value):
        match = _TOKEN.match(value, at)
        if match is not None:
            assert match.lastindex is not None
            found.append(AddressToken(match.lastindex, match[0]))
            at = match.end()
        elif value[at] == "(":
            end = _comment_end(value, at)
            found.append(AddressToken(COMMENT, value[at:end]))
            at = end
        else:
            raise Unreadable("quotes, comments or control characters are not well-formed")
    return found


def _comment_end(value: str, at: int) -> int:
    depth = 0
    for match in _IN_COMMENT.finditer(value, at):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return match.end()
    raise Unreadable("a comment has no end")


def unquoted(text: str) -> str:
    """The content of a quoted string."""
    return _QUOTED_PAIR.sub(r"\1", text[1:-1])


def mailboxes(value: str) -> list[Mailbox]:
    """The mailboxes of a list. Raises Unreadable."""
    if len(value) > VALUE_MAX:
        raise Unreadable(f"it has more than {VALUE_MAX} characters")
    if _CONTROLS.search(value):
        raise Unreadable("it has control characters")
    found: list[Mailbox] = []
    element: list[AddressToken] = []
    for token in [*tokens(value), AddressToken(SPECIAL, ",")]:
        if token.kind == SPECIAL and token.text in ":;":
            raise Unreadable("a group or a route is not allowed")
        if token != (SPECIAL, ","):
            element.append(token)
            continue
        if any(each.kind not in (SPACE, COMMENT) for each in element):
            found.append(_mailbox(element))
        element = []
    return found


def _mailbox(element: Sequence[AddressToken]) -> Mailbox:
    """The mailbox of ``element``, the tokens between two commas. Raises Unreadable."""
    begins = [at for at, token in enumerate(element) if token == (SPECIAL, "<")]
    ends = [at for at, token in enumerate(element) if token == (SPECIAL, ">")]
    name, inner, outer = element[:0], element, element[:0]
    if begins or ends:
        if len(begins) != 1 or len(ends) != 1 or begins > ends:
            raise Unreadable("a mailbox has one address in brackets")
        begin, end = begins[0], ends[0]
        name, inner, outer = element[:begin], element[begin + 1 : end], element[end + 1 :]
    for token in element:
        if token.kind in (COMMENT, QUOTED):
            _check_hidden(token)
    around = (SPACE,) if begins else (SPACE, COMMENT)
    inner = _stripped(inner, around)
    address = "".join(token.text for token in inner)
    for each in (inner, tokens(normalize("NFKC", address))):
        if [token.kind for token in each] != [WORD, SPECIAL, WORD] or each[1].text != "@":
            raise Unreadable(f"'{address}' is not one address")
    if "=?" in address or _stripped(outer, (SPACE, COMMENT)):
        raise Unreadable("there is more than an address, or a name and an address in brackets")
    return Mailbox(address, _named(name) if name else ())


def _stripped(found: Sequence[AddressToken], kinds: tuple[int, ...]) -> Sequence[AddressToken]:
    """``found`` without tokens of ``kinds`` at both ends."""
    at, end = 0, len(found)
    while at < end and found[at].kind in kinds:
        at += 1
    while end > at and found[end - 1].kind in kinds:
        end -= 1
    return found[at:end]


def _check_hidden(token: AddressToken) -> None:
    """Raises Unreadable for a comment or a quoted string that hides an address from some readers only.

    Some decode the encoded words of a field before they look for quotes and comments.
    """
    inner = token.text[1:-1]
    if token.kind == COMMENT and re.search(r'[()"@\\]', inner):
        raise Unreadable("a comment has an address, quotes, or a comment")
    if "=?" in inner and re.search(r'[()"\\\x00-\x1f]|=\?', _decoded(inner)):
        raise Unreadable("an encoded word has quotes or parentheses")


def _decoded(text: str) -> str:
    try:
        return decode(text)
    except ValueError as exc:
        raise Unreadable(str(exc)) from exc


def _named(name: Sequence[AddressToken]) -> tuple[str, ...]:
    """The normalised addresses in a display name. Raises Unreadable for what may be one, or a part of one."""
    for at, token in enumerate(name):
        if token == (SPECIAL, "@"):
            _check_at(name[:at], name[at + 1 :])
    # Quotation marks stand for each quoted string, and a space for each comment.
    plain = "".join({QUOTED: '""', COMMENT: " "}.get(token.kind, token.text) for token in name)
    decoded = _decoded(plain)
    if "=?" in decoded or _CONTROLS.search(decoded) or re.search(r"[<>\\]", decoded):
        raise Unreadable("an encoded word is not well-formed, or has brackets")
    tokens(decoded)  # some look for quotes and comments after they have decoded it: they must have ends
    if "@" not in decoded and not any("@" in token.text for token in name):
        return ()
    if re.search(r"[()\[\]:;,]", decoded) or ("=?" in plain and decoded.count('"') != plain.count('"')):
        raise Unreadable("a name with an '@' has brackets, or specials in an encoded word")
    shown = normalize("NFKC", decoded).replace("\u3002", ".")
    words = shown.split()
    together = " ".join(words)
    for mark in "@.":
        together = together.replace(f" {mark}", mark).replace(f"{mark} ", mark)
    found = []
    for word in together.split():
        local, at_sign, domain = word.rpartition("@")
        if at_sign and ("." in domain or (local and word in words) or re.search('[@"]', local)):
            found.append(_normal(word.strip("'")))
    return tuple(found)


def _check_at(before: Sequence[AddressToken], behind: Sequence[AddressToken]) -> None:
    """Raises Unreadable unless an ``@`` between them joins two words that are apart from all else."""
    beside = [*before[-1:], *behind[:1]]
    if [token.kind for token in beside] != [WORD, WORD] or any(
        token.kind != SPACE for token in (*before[-2:-1], *behind[1:2])
    ):
        raise Unreadable("an '@' in a name has white space, quotes or comments beside it")
    left, right = (_stripped(each, (SPACE, COMMENT)) for each in (before[:-1], behind[1:]))
    dots = [each.text.endswith(".") for each in (*left[-1:], beside[1])]
    dots += [each.text.startswith(".") for each in (*right[:1], beside[0])]
    if any("=?" in each.text for each in beside):
        raise Unreadable("an address in a name has an encoded word beside it")
    if any(dots):
        raise Unreadable("an address in a name has white space beside a dot")


def _normal(address: str) -> str:
    try:
        if address.count("@") > 1 or '"' in address:
            raise ValueError("it has two '@' or quotes")
        return normalise(address)
    except ValueError as exc:
        raise Unreadable(f"'{address}' is not one address: {exc}") from exc


def _addresses(value: str) -> Iterator[str]:
    """The normalised addresses of a mailbox list, those in names included. Raises Unreadable."""
    plain = _PLAIN.match(value)
    if plain is not None:
        yield _normal(plain[1] or plain[3])
        return
    for mailbox in mailboxes(value):
        yield from mailbox.named
        yield _normal(mailbox.address)


def author_addresses(header: bytes, fields: Iterable[Field]) -> list[str]:
    """The normalised addresses in From, and in Sender if it is present. Raises Unreadable."""
    values: dict[bytes, list[str]] = {}
    for field in fields:
        if field.name == b"from" or field.name == b"sender":
            values.setdefault(field.name, []).append(field_value(header, field))
    if b"from" not in values:
        raise Unreadable("the message has no From field")
    authors: list[str] = []
    for key, of_name in sorted(values.items()):
        name = key.decode().capitalize()
        if len(of_name) > 1:
            raise Unreadable(f"the message has {len(of_name)} {name} fields")
        try:
            found = list(_addresses(of_name[0]))
        except Unreadable as exc:
            raise Unreadable(f"{name}: {exc}") from exc
        if not found:
            raise Unreadable(f"{name} names no address")
        authors += found
    return authors


def author_domain(header: bytes, fields: Iterable[Field]) -> str:
    """The normalised domain of the first author (From); empty if receivers may read another one, or none."""
    value = None
    for field in fields:
        if field.name == b"from":
            if value is not None:
                return ""
            value = field_value(header, field)
    if value is None:
        return ""
    plain = _PLAIN.match(value)
    if plain is not None:
        return (plain[2] or plain[4]).lower()
    try:
        found = mailboxes(value)
        domain = domain_of(_normal(found[0].address)) if found else ""
    except Unreadable:
        return ""
    return domain if not found or all(domain_of(each) == domain for each in found[0].named) else ""


def first_address(value: str) -> str:
    """The address of the first mailbox in ``value``, which may be folded, as it is written; empty when not all would read the same."""
    try:
        found = mailboxes(_FOLD.sub("", value) if "\n" in value else value)
    except Unreadable:
        return ""
    return found[0].address if found else ""
