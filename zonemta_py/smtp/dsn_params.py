"""The DSN parameters of a client: NOTIFY, ORCPT, ENVID. Pure.

Source: RFC 3461 sections 4 and 5; RFC 6533 section 3 (utf-8 addresses in ORCPT).
"""

import re

from zonemta_py.core.text import one_line

NEVER, SUCCESS, FAILURE, DELAY = 1, 2, 4, 8
UNSET = 0

_NAMES = {"NEVER": NEVER, "SUCCESS": SUCCESS, "FAILURE": FAILURE, "DELAY": DELAY}
_XTEXT = re.compile(r"(?:[\x21-\x2a\x2c-\x3c\x3e-\x7e]|\+[0-9A-F]{2})+\Z")
_ENCODED = re.compile(r"\+([0-9A-F]{2})")
_ORCPT = re.compile(r"([A-Za-z0-9-]{1,40});(.+)\Z")

ENVID_MAX = 100
ORCPT_MAX = 500


def parse_notify(value: str) -> int | None:
    """The flags of a NOTIFY parameter, or None if it is malformed."""
    words = value.upper().split(",")
    if any(word not in _NAMES for word in words) or len(set(words)) != len(words):
        return None
    flags = sum(_NAMES[word] for word in words)
    return None if flags & NEVER and flags != NEVER else flags


def write_notify(flags: int) -> str:
    """The NOTIFY parameter of ``flags``, which must not be UNSET."""
    return ",".join(name for name, flag in _NAMES.items() if flags & flag)


def wants_failure(flags: int) -> bool:
    """Whether the sender gets a report of failure, as without NOTIFY."""
    return flags == UNSET or bool(flags & FAILURE)


def wants_delay(flags: int) -> bool:
    """Whether the sender gets a report of delay, as without NOTIFY."""
    return flags == UNSET or bool(flags & DELAY)


def wants_success(flags: int) -> bool:
    """Whether the sender gets a report of success."""
    return bool(flags & SUCCESS)


def valid_envid(value: str) -> bool:
    """Whether ``value`` is a valid ENVID parameter."""
    return len(value) <= ENVID_MAX and _XTEXT.match(value) is not None


def valid_orcpt(value: str) -> bool:
    """Whether ``value`` is a valid ORCPT parameter: an address type, a semicolon, xtext."""
    match = _ORCPT.match(value)
    return len(value) <= ORCPT_MAX and match is not None and _XTEXT.match(match[2]) is not None


def decode_xtext(value: str) -> str:
    """The text that xtext encodes; characters that are not printable become question marks."""
    data = _ENCODED.sub(lambda match: chr(int(match[1], 16)), value).encode("latin-1", "replace")
    text = data.decode("utf-8", "replace")
    return one_line(text, "?")
