"""Mail addresses: parse, normalise, split, and their VERP forms. Pure.

A normalised address is ``local@domain`` with the local part as given and the domain as lower-case
A-labels, so that one mailbox has one spelling in keys and DNS. The null sender is ``""``.

Two rules. ``normalise`` is for the mail that we carry: only the receiver's host can say what a local part means, and there are
mailboxes such as ``user.@ezweb`` and senders (SRS, VERP) longer than RFC 5321 has them. ``strict`` is for the addresses that
we make. Both refuse what two servers could read differently: two ``@``, comments, blanks, specials without quotes, and a dot behind the domain.

Source: RFC 5321 sections 4.1.2, 4.5.3.1; RFC 5322 section 4.4 (obs-local-part); RFC 6531 (UTF-8 local parts); RFC 5891
(IDNA 2008).
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address

import idna

LOCAL_MAX = 64  # bytes of a local part that we make, RFC 5321 section 4.5.3.1.1
DOMAIN_MAX = 255
PATH_MAX = 254  # bytes of an address that we make: 256 with the angle brackets
ADDRESS_MAX = 320  # bytes of any address: as long as the longest parts of RFC 5321 together

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-\u0080-\U0010ffff]+"
_QUOTED = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e\u0080-\U0010ffff]|\\[\x20-\x7e])*"'
_STRICT_LOCAL = re.compile(rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})\Z")
_LOCAL = re.compile(rf"(?:{_ATOM}|{_QUOTED})?(?:\.(?:{_ATOM}|{_QUOTED})?)*\Z")
# Refused in a local part: C1 controls, line separators, marks of the direction of writing.
_MISLEADING = re.compile("[\x80-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LABEL = r"[a-z0-9_](?:[a-z0-9_\-]{0,61}[a-z0-9_])?"
_ASCII_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\Z")
_LITERAL = re.compile(r"\[(?:\d{1,3}(?:\.\d{1,3}){3}|ipv6:[0-9a-f:.]+)\]\Z")
_QUOTED_PAIR = re.compile(r'\\.|"')
# The common address needs one match; every other address takes the slow path.
_PLAIN = re.compile(rf"[A-Za-z0-9._+=\-]+@{_LABEL}(?:\.{_LABEL})+\Z")


class AddressError(ValueError):
    """A text is not an address; the text of the error has the reason."""


def normalise(text: str) -> str:
    """The normal form of an address without angle brackets that a client, a list or a header names. Raises AddressError.

    A domain with U-labels is converted to A-labels.
    """
    if len(text) <= PATH_MAX and _PLAIN.match(text):  # then no part of it is too long
        return text
    local, at, domain = text.rpartition("@")
    if not at or not local or not domain:
        raise AddressError("an address is local@domain")
    if len(text) > ADDRESS_MAX:
        raise AddressError(f"address over {ADDRESS_MAX} bytes")
    if not _LOCAL.match(local) or _MISLEADING.search(local):
        raise AddressError("malformed local part")
    address = f"{local}@{normalise_domain(domain)}"
    try:
        size = len(address.encode())
    except UnicodeEncodeError:
        raise AddressError("the address is not valid UTF-8") from None
    if size > ADDRESS_MAX:
        raise AddressError(f"address over {ADDRESS_MAX} bytes")
    return address


def strict(text: str) -> str:
    """The normal form of an address that we make, which RFC 5321 allows to the letter. Raises AddressError."""
    address = normalise(text)
    local, _, domain = address.rpartition("@")
    if not _STRICT_LOCAL.match(local):
        raise AddressError("malformed local part")
    if "_" in domain:
        raise AddressError("malformed domain")
    if len(local.encode()) > LOCAL_MAX:
        raise AddressError(f"local part over {LOCAL_MAX} bytes")
    if len(address.encode()) > PATH_MAX:
        raise AddressError(f"address over {PATH_MAX} bytes")
    return address


def in_header(address: str) -> str:
    """A normalised address as a header field that we write names it: a local part that needs quotes has them."""
    local, _, domain = address.rpartition("@")
    if not local or _STRICT_LOCAL.match(local):
        return address
    plain = _QUOTED_PAIR.sub(lambda found: "" if found[0] == '"' else found[0], local)
    return f'"{plain}"@{domain}'


@lru_cache(maxsize=4096)
def normalise_domain(text: str) -> str:
    """A domain in lower-case A-labels, or an address literal in lower case. Raises AddressError."""
    if len(text) > DOMAIN_MAX:  # before idna, whose time grows faster than the text
        raise AddressError("malformed domain")
    lower = text.lower()
    if lower.startswith("["):
        if _LITERAL.match(lower) and is_ip(lower[1:-1].removeprefix("ipv6:")):
            return lower
        raise AddressError("malformed address literal")
    if not lower.isascii():
        try:
            lower = idna.encode(text, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError) as exc:
            raise AddressError(f"not an internationalised domain: {exc}") from None
    if len(lower) > DOMAIN_MAX or not _ASCII_DOMAIN.match(lower):
        raise AddressError("malformed domain")
    return lower


def is_ip(text: str) -> bool:
    """True if ``text`` is an IPv4 or IPv6 address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def with_parents(domain: str) -> Iterator[str]:
    """``a.b.example``, ``b.example``, ``example``."""
    while domain:
        yield domain
        domain = domain.partition(".")[2]


def domain_of(address: str) -> str:
    """The domain of a normalised address; ``""`` for the null sender."""
    return address[address.rfind("@") + 1 :]


def folded(address: str) -> str:
    """The form in which normalised addresses of a list are compared: few systems distinguish upper and lower case, and no list means it."""
    return address.lower()


def needs_smtputf8(address: str) -> bool:
    """True if a normalised address requires SMTPUTF8, because of its local part; or one of several that are joined."""
    return not address.isascii()


# ---- VERP: envelope senders that contain the recipient, so that a bounce identifies it. Pure.
#
# Source: qmail's addresses(5) (``owner-@host-@[]``) and its double bounce sender ``#@[]``.

DOUBLE_BOUNCE = "#@[]"  # the sender of a report about a report; mail is never sent to it
_SUFFIX = "-@[]"


def verp_base(sender: str) -> str:
    """``owner-@host`` for ``owner-@host-@[]``; any other sender unchanged."""
    return sender[: -len(_SUFFIX)] if is_verp(sender) else sender


def is_verp(sender: str) -> bool:
    """True if ``sender`` has qmail's form for expansion, ``owner-@host-@[]``."""
    return sender.endswith(_SUFFIX) and sender != _SUFFIX


def expand_verp(sender: str, recipient: str) -> str:
    """The sender of a transaction with the single recipient ``recipient``.

    ``owner-@host-@[]`` becomes ``owner-user=domain@host``; any other address ``local@host``
    becomes ``local+user=domain@host``. The null sender and DOUBLE_BOUNCE are not changed.

    What RFC 5321 would not allow (quoted local parts, over 64 bytes) is not expanded: ``owner-@host`` or ``local@host``.
    A report to that comes back, but does not name the recipient.
    """
    if sender in ("", DOUBLE_BOUNCE):
        return sender
    local, _, host = verp_base(sender).rpartition("@")
    user, _, domain = recipient.rpartition("@")
    between = "" if is_verp(sender) else "+"
    expanded = f"{local}{between}{user}={domain}@{host}"
    try:
        strict(expanded)
    except AddressError:
        return verp_base(sender)
    return expanded


def contract_verp(address: str, sender: str) -> str:
    """The recipient in ``address``, if ``address`` is an expansion of ``sender``; else empty."""
    if sender in ("", DOUBLE_BOUNCE):
        return ""
    local, _, host = verp_base(sender).rpartition("@")
    found, _, at = address.rpartition("@")
    begin = local if is_verp(sender) else f"{local}+"
    if at.lower() != host.lower() or not found.startswith(begin):
        return ""
    user, separator, domain = found[len(begin) :].rpartition("=")
    return f"{user}@{domain}" if separator and user and domain else ""
