"""Rules of large receivers for bulk mail, and the check of a message against them. Pure.

Sources: Gmail's "Email sender guidelines" and Yahoo's "Sender Best Practices" (both in force since February 2024);
RFC 8058 (one-click unsubscribe), RFC 7489 section 3.1 (alignment), RFC 5322 sections 2.1.1 and 3.6.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.dkim import signing_domain
from zonemta_py.smtp.headers import LINE_MAX, Field, HeaderTooLarge, field_value, mailbox_lines_end, scan

ERROR, WARNING, INFO = "error", "warning", "info"
CLIPPED_BYTES = 102_000  # of the HTML that Gmail shows without "view entire message"
LARGE_BYTES = 1 << 20
UNSUBSCRIBE = (b"list-unsubscribe", b"list-unsubscribe-post")
ONE_CLICK = re.compile(r"List-Unsubscribe\s*=\s*One-Click\Z", re.IGNORECASE)
URI = re.compile(r"<\s*([a-zA-Z]+):[^<>]*>")
ONCE = (b"from", b"sender", b"reply-to", b"to", b"cc", b"message-id", b"date", b"subject")


class Finding(NamedTuple):
    """A rule that the message breaks. ``level``: ERROR when receivers refuse mail or file it as spam for it."""

    level: str
    rule: str
    text: str


class Signing(NamedTuple):
    """The signatures of the relay: the domains that have keys, and the names of signed fields in lower case."""

    domains: Collection[str]
    headers: Collection[str]


def check_message(data: bytes, from_domain: str = "", signing: Signing | None = None) -> list[Finding]:
    """The findings, errors first. ``from_domain``: what From should have; ``signing``: None when not known."""
    data = _with_crlf(data)
    try:
        fields, end = scan(data)
    except HeaderTooLarge as exc:
        return [Finding(ERROR, "header", str(exc))]
    header, body = data[:end], data[end:].removeprefix(b"\r\n")
    found = [
        *_fields(header, fields),
        *_author(header, fields, from_domain, signing),
        *_unsubscribe(header, fields, signing),
        *_content(header, fields, body),
    ]
    return sorted(found, key=lambda each: (ERROR, WARNING, INFO).index(each.level))


def author_domain(data: bytes) -> str:
    """The domain of the first author; empty when From cannot be read."""
    header = _with_crlf(data)
    try:
        return domain_of(author_addresses(header, scan(header)[0])[0])
    except ValueError:
        return ""


def _with_crlf(data: bytes) -> bytes:
    """The message as the relay takes it: with CRLF, and without lines of an mbox file before the header."""
    data = re.sub(rb"\r\n|\r|\n", b"\r\n", data)
    return data[mailbox_lines_end(data) :]


def _values(header: bytes, fields: Iterable[Field], name: bytes) -> list[str]:
    return [field_value(header, field) for field in fields if field.name == name]


def _fields(header: bytes, fields: Sequence[Field]) -> Iterator[Finding]:
    for name in ONCE:
        times = sum(field.name == name for field in fields)
        if times > 1 and name != b"from":
            yield Finding(ERROR, "fields", f"{name.decode()} appears {times} times; once is allowed")
    for name, what in ((b"subject", "a Subject"), (b"to", "a To")):
        if not any(_values(header, fields, name)):
            yield Finding(
                WARNING, "fields", f"there is no {name.decode().capitalize()}: filters expect {what}"
            )
    for name in (b"date", b"message-id"):
        if not _values(header, fields, name):
            yield Finding(INFO, "fields", f"there is no {name.decode().title()}; the relay adds one")
    if not header.isascii():
        names = sorted({f.name.decode() for f in fields if not header[f.start : f.end].isascii()})
        yield Finding(WARNING, "fields", f"{', '.join(names)}: 8-bit characters, not encoded (RFC 2047)")


def _author(
    header: bytes, fields: Sequence[Field], from_domain: str, signing: Signing | None
) -> Iterator[Finding]:
    try:
        authors = author_addresses(header, fields)
    except Unreadable as exc:
        yield Finding(ERROR, "from", str(exc))
        return
    domain = domain_of(authors[0])
    if from_domain and domain != from_domain:
        yield Finding(ERROR, "from", f"From has the domain {domain}, expected {from_domain}")
    if "." not in domain:
        yield Finding(ERROR, "from", f"{domain} is not a domain of the Internet")
    yield from _signature(header, fields, domain, signing)


def _signature(
    header: bytes, fields: Sequence[Field], domain: str, signing: Signing | None
) -> Iterator[Finding]:
    """True if the message has, or will get, a signature that DMARC counts for ``domain``."""
    if signing is not None and signing_domain(domain, signing.domains):
        return
    signed = [
        match[1].lower()
        for value in _values(header, fields, b"dkim-signature")
        for match in [re.search(r"(?:^|;)\s*d\s*=\s*([^;\s]+)", value)]
        if match
    ]
    if any(_related(domain, each) for each in signed):
        return
    if signing is None and not signed:
        yield Finding(
            INFO, "dkim", "there is no signature; name the relay's configuration to check its keys"
        )
        return
    have = f"signed for {', '.join(signed)} only" if signed else "there is no key"
    yield Finding(ERROR, "dkim", f"no aligned DKIM signature for {domain}: {have}")


def _related(one: str, other: str) -> bool:
    """True if the domains may be aligned: the same, or one below the other."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def _unsubscribe(header: bytes, fields: Sequence[Field], signing: Signing | None) -> Iterator[Finding]:
    links = " ".join(_values(header, fields, UNSUBSCRIBE[0]))
    post = _values(header, fields, UNSUBSCRIBE[1])
    kinds = {match.lower() for match in URI.findall(links)}
    if not kinds:
        yield Finding(ERROR, "unsubscribe", "there is no List-Unsubscribe with a link in < >")
        return
    if "https" not in kinds:
        yield Finding(ERROR, "unsubscribe", "List-Unsubscribe has no https link, which one click needs")
    if not post:
        yield Finding(
            ERROR, "unsubscribe", "there is no List-Unsubscribe-Post: List-Unsubscribe=One-Click"
        )
    elif not ONE_CLICK.match(post[0]):
        yield Finding(
            ERROR, "unsubscribe", f"List-Unsubscribe-Post is '{post[0]}', not List-Unsubscribe=One-Click"
        )
    unsigned = [
        each.decode() for each in UNSUBSCRIBE if signing and each.decode() not in signing.headers
    ]
    if unsigned:
        yield Finding(
            ERROR,
            "unsubscribe",
            f"dkim.headers lacks {', '.join(unsigned)}, which RFC 8058 wants signed",
        )


def _content(header: bytes, fields: Sequence[Field], body: bytes) -> Iterator[Finding]:
    longest = max(map(len, (*header.split(b"\r\n"), *body.split(b"\r\n"))))
    if longest > LINE_MAX:
        yield Finding(ERROR, "lines", f"a line has {longest} bytes; {LINE_MAX} are allowed")
    kind = " ".join(_values(header, fields, b"content-type")).lower()
    html = kind.startswith("text/html") or b"text/html" in body.lower()
    if html and not (b"text/plain" in body.lower() and kind.startswith("multipart/")):
        yield Finding(WARNING, "content", "HTML without a plain text part")
    if html and len(body) > CLIPPED_BYTES:
        yield Finding(WARNING, "size", f"{len(body):,} bytes with HTML: Gmail clips mail above 102 kB")
    elif len(body) > LARGE_BYTES:
        yield Finding(
            WARNING, "size", f"{len(body):,} bytes for each recipient; link to large content instead"
        )
    if not body.strip():
        yield Finding(WARNING, "content", "the message has no text")
    if not body.isascii() and not _values(header, fields, b"content-type"):
        yield Finding(
            ERROR, "content", "8-bit characters without a Content-Type that names their character set"
        )
