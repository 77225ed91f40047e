"""Parser of MAIL and RCPT commands: values, or the reply that refuses the command. Pure.

Source: RFC 5321 sections 4.1.1.2, 4.1.1.3 (and their old forms), RFC 1870 (SIZE), RFC 6152
(8BITMIME), RFC 6531 (SMTPUTF8), RFC 3461 (DSN), RFC 4865 (FUTURERELEASE), RFC 2852 (DELIVERBY).
"""

import re
from collections.abc import Mapping
from datetime import datetime

from zonemta_py.core.codec import Struct, replace
from zonemta_py.smtp.address import DOUBLE_BOUNCE, AddressError, needs_smtputf8, normalise, verp_base
from zonemta_py.smtp.reports.dsn import UNSET, parse_notify, valid_envid, valid_orcpt

KEY_WINDOW = "X-SUBMISSION-KEY"  # EHLO keyword: for how many seconds a submission key is remembered

_PATH = re.compile(
    r"\s*<(?:@[^:,<>\s]+(?:,@[^:,<>\s]+)*:)?((?:\"(?:[^\"\\]|\\.)*\"|[^<>\"\s])*)>(?:\s+(\S.*))?\s*\Z",
    re.DOTALL,
)
# Where a listener is relaxed: an address without brackets, or with blanks inside them. A bracket alone is none of both.
_RELAXED = re.compile(
    r"\s*(?:<\s*(?:((?:\"(?:[^\"\\]|\\.)*\"|[^<>\"\s])+)\s*)?>|((?:\"(?:[^\"\\]|\\.)*\"|[^<>\"\s])+))(?:\s+(\S.*))?\s*\Z",
    re.DOTALL,
)
_BY = re.compile(r"([+-]?[0-9]{1,9});([NR])T?\Z", re.IGNORECASE)
_PARAMETER = re.compile(r"([A-Za-z0-9][A-Za-z0-9\-]*)(?:=([\x21-\x3c\x3e-\x7e]+))?\Z")


class Refused(Exception):
    """A command is refused; ``reply`` is the whole reply, without CRLF."""

    def __init__(self, reply: str) -> None:
        super().__init__(reply)
        self.reply = reply


class Mail(Struct, frozen=True):
    """A MAIL command. ``sender`` is normalised, ``""`` for ``<>``; ``size`` is 0 without SIZE.

    ``ret`` (FULL or HDRS) and ``envid`` (xtext) are empty without the parameter. ``hold_for_s`` and
    ``hold_until_ms`` (unix ms) are 0 without HOLDFOR and HOLDUNTIL; ``by_mode`` (N, R) is empty without BY.
    """

    sender: str
    size: int
    smtputf8: bool
    ret: str = ""
    envid: str = ""
    hold_for_s: int = 0
    hold_until_ms: int = 0
    by_s: int = 0
    by_mode: str = ""


class Rcpt(Struct, frozen=True):
    """A RCPT command. ``address`` is normalised, ``notify`` holds flags of ``reports.dsn``, ``orcpt`` is xtext."""

    address: str
    notify: int = UNSET
    orcpt: str = ""


def parse_mail(argument: str, *, extended: bool, max_size: int, relaxed: bool = False) -> Mail:
    """Parse ``argument``, the text after ``MAIL``. ``extended``: the client sent EHLO. Raises Refused.

    ``relaxed``: the address may be without brackets.
    """
    path, parameters = _split(argument, "FROM:", "MAIL FROM:<address>", relaxed)
    if parameters and not extended:
        raise Refused("555 5.5.4 Parameters need EHLO")
    size, smtputf8, ret, envid, timing = 0, False, "", "", dict[str, str]()
    for name, value in parameters:
        if name in ("HOLDFOR", "HOLDUNTIL", "BY"):
            timing[name] = value
        elif name == "SIZE" and value.isascii() and value.isdigit() and len(value) <= 20:
            size = int(value)
        elif name == "BODY" and value.upper() in ("7BIT", "8BITMIME"):
            pass  # the relay scans the body itself
        elif name == "SMTPUTF8" and not value:
            smtputf8 = True
        elif name == "AUTH" and value:
            pass  # accepted and ignored, as RFC 4954 section 5 permits
        elif name == "RET" and value.upper() in ("FULL", "HDRS"):
            ret = value.upper()
        elif name == "ENVID" and valid_envid(value):
            envid = value
        elif name in ("SIZE", "BODY", "SMTPUTF8", "AUTH", "RET", "ENVID"):
            raise Refused(f"501 5.5.4 Bad value of {name}")
        else:
            raise Refused(f"555 5.5.4 Unsupported parameter {name}")
    if size > max_size:
        raise Refused(f"552 5.3.4 Message size exceeds the limit of {max_size} bytes")
    sender = _sender(path, smtputf8=smtputf8)
    mail = Mail(sender, size, smtputf8, ret, envid)
    if not timing:
        return mail
    hold_for_s, hold_until_ms = _hold(timing)
    by_s, by_mode = _by(timing)
    return replace(mail, hold_for_s=hold_for_s, hold_until_ms=hold_until_ms, by_s=by_s, by_mode=by_mode)


def _hold(timing: Mapping[str, str]) -> tuple[int, int]:
    """HOLDFOR in seconds and HOLDUNTIL in unix ms; one of them at most is not 0."""
    if "HOLDFOR" in timing and "HOLDUNTIL" in timing:
        raise Refused("501 5.5.4 HOLDFOR and HOLDUNTIL exclude each other")
    hold_for, until = timing.get("HOLDFOR", "0"), timing.get("HOLDUNTIL", "")
    if not (hold_for.isascii() and hold_for.isdigit() and len(hold_for) <= 9):
        raise Refused("501 5.5.4 Bad value of HOLDFOR")
    if "HOLDUNTIL" not in timing:
        return int(hold_for), 0
    try:
        when = datetime.fromisoformat(until)
        if when.tzinfo is None:
            raise ValueError
        return 0, max(1, round(when.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise Refused("501 5.5.4 Bad value of HOLDUNTIL") from None


def _by(timing: Mapping[str, str]) -> tuple[int, str]:
    """Seconds and mode of BY. A message to be returned at once is refused (RFC 2852 section 4)."""
    if "BY" not in timing:
        return 0, ""
    match = _BY.match(timing["BY"])
    if match is None or (match[2].upper() == "R" and int(match[1]) <= 0):
        raise Refused("501 5.5.4 Bad value of BY")
    return int(match[1]), match[2].upper()


def _sender(path: str, *, smtputf8: bool) -> str:
    """The null sender, qmail's double bounce sender, an address, or an address in qmail's VERP form."""
    if path in ("", DOUBLE_BOUNCE):
        return path
    base = verp_base(path)
    return _address(base, "5.1.7", smtputf8=smtputf8) + path[len(base) :]


def parse_rcpt(
    argument: str, *, smtputf8: bool, extended: bool, hostname: str = "", relaxed: bool = False
) -> Rcpt:
    """Parse ``argument``, the text after ``RCPT``. ``hostname`` completes ``<postmaster>``. Raises Refused.

    ``relaxed``: the address may be without brackets.
    """
    path, parameters = _split(argument, "TO:", "RCPT TO:<address>", relaxed)
    if parameters and not extended:
        raise Refused("555 5.5.4 Parameters need EHLO")
    notify, orcpt = UNSET, ""
    for name, value in parameters:
        flags = parse_notify(value) if name == "NOTIFY" else None
        if flags is not None:
            notify = flags
        elif name == "ORCPT" and valid_orcpt(value):
            orcpt = value
        elif name in ("NOTIFY", "ORCPT"):
            raise Refused(f"501 5.5.4 Bad value of {name}")
        else:
            raise Refused(f"555 5.5.4 Unsupported parameter {name}")
    if not path:
        raise Refused("501 5.1.3 A recipient is needed")
    if path.lower() == "postmaster":  # RFC 5321 section 4.5.1: the only address without a domain
        path = f"postmaster@{hostname}"
    return Rcpt(_address(path, "5.1.3", smtputf8=smtputf8), notify, orcpt)


def _split(argument: str, keyword: str, syntax: str, relaxed: bool) -> tuple[str, list[tuple[str, str]]]:
    """The path between the brackets and the parameters as (NAME, value), the name in upper case."""
    if argument[: len(keyword)].upper() != keyword:
        raise Refused(f"501 5.5.4 Syntax: {syntax}")
    match = _PATH.match(argument[len(keyword) :])
    if match is not None:
        path, rest = match.groups()
    else:
        found = _RELAXED.match(argument[len(keyword) :]) if relaxed else None
        if found is None:
            raise Refused(f"501 5.5.4 Syntax: {syntax}")
        path, rest = found[1] or found[2] or "", found[3]
    parameters, seen = [], set()
    for word in (rest or "").split():
        parameter = _PARAMETER.match(word)
        if parameter is None or parameter[1].upper() in seen:
            raise Refused("501 5.5.4 Bad or repeated parameter")
        seen.add(parameter[1].upper())
        parameters.append((parameter[1].upper(), parameter[2] or ""))
    return path, parameters


def _address(path: str, status: str, *, smtputf8: bool) -> str:
    try:
        address = normalise(path)
    except AddressError as exc:
        raise Refused(f"553 {status} {exc}") from None
    if not smtputf8 and needs_smtputf8(address):
        raise Refused("553 5.6.7 This address needs SMTPUTF8")
    return address
