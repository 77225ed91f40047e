"""Policies: what a program of the operator's makes of a message's envelope and header at intake. Pure.

A policy is called with an ``Envelope`` once the header is there and before the body is stored. It changes the
envelope, or returns the envelopes that take its place. Source: python-slimta's queue policies.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from zonemta_py.smtp import verp
from zonemta_py.smtp.address import domain_of, normalise
from zonemta_py.smtp.headers import field_value, is_header, scan

_FIELD_NAME = re.compile(r"[\x21-\x39\x3b-\x7e]+\Z")


class Client(NamedTuple):
    """Who submitted the message. ``user`` is empty without AUTH."""

    ip: str
    helo: str
    user: str
    protocol: str


class Asked(Protocol):
    """What a client said at RCPT."""

    @property
    def address(self) -> str:
        """The recipient."""


class Envelope:
    """Sender, recipients and header block (each field ends in CRLF) of one message."""

    def __init__(self, sender: str, asked: Iterable[Asked], header: bytes, client: Client) -> None:
        self._asked = {each.address: each for each in asked}
        self.sender = sender
        self.recipients = list(self._asked)
        self.header = header
        self.client = client

    def copy(self, recipients: Iterable[str] | None = None) -> "Envelope":
        """An envelope of its own, for ``recipients`` if given."""
        other = Envelope(self.sender, (), self.header, self.client)
        other.recipients = list(self.recipients if recipients is None else recipients)
        other._asked = dict(self._asked)
        return other

    def rename(self, address: str, new: str) -> None:
        """Send to ``new`` instead of ``address``; what the client asked about reports goes along."""
        new = normalise(new)
        self.recipients = list(
            dict.fromkeys(new if each == address else each for each in self.recipients)
        )
        if address in self._asked:
            self._asked.setdefault(new, self._asked[address])

    def asked(self, address: str) -> Any:
        """What the client said of the recipient that became ``address``; None for one of the policies' own."""
        return self._asked.get(address)

    def field(self, name: str) -> str:
        """The value of the first field ``name``, empty without one."""
        wanted = name.lower().encode()
        for field in scan(self.header)[0]:
            if field.name == wanted:
                return field_value(self.header, field)
        return ""

    def prepend(self, name: str, value: str) -> None:
        """Put a field before the others. ValueError for what is no field."""
        if not _FIELD_NAME.match(name) or not value.isprintable():
            raise ValueError(f"{name}: {value!r} is no header field")
        self.header = f"{name}: {value}\r\n".encode() + self.header


EnvelopePolicy = Callable[[Envelope], Envelope | Iterable[Envelope] | None]


def run_policies(policies: Sequence[EnvelopePolicy], envelope: Envelope) -> list[Envelope]:
    """The envelopes that come of ``envelope``: each policy sees what those before it made.

    Recipients are normalised; envelopes without any are gone. Raises whatever a policy raises, and ValueError or
    TypeError for what cannot be stored.
    """
    envelopes = [envelope]
    for policy in policies:
        envelopes = [made for each in envelopes for made in _run(policy, each)]
    for each in envelopes:
        _check(each)
    return [each for each in envelopes if each.recipients]


def _check(envelope: Envelope) -> None:
    if not isinstance(envelope, Envelope) or not isinstance(envelope.header, bytes):
        raise TypeError(f"a policy made {envelope!r}, and no envelope with a header")
    if not is_header(envelope.header):
        raise ValueError(f"a policy made a header that is none: {envelope.header[:200]!r}")
    if envelope.sender not in ("", verp.DOUBLE_BOUNCE):
        normalise(verp.base(envelope.sender))
    for address in list(envelope.recipients):
        envelope.rename(address, address)


def _run(policy: EnvelopePolicy, envelope: Envelope) -> Iterable[Envelope]:
    made = policy(envelope)
    if made is None:
        return (envelope,)
    return (made,) if isinstance(made, Envelope) else made


def split_by_recipient(envelope: Envelope) -> list[Envelope]:
    """One message for each recipient."""
    return [envelope.copy([address]) for address in envelope.recipients]


def split_by_domain(envelope: Envelope) -> list[Envelope]:
    """One message for each recipient domain, in the order they come."""
    domains: dict[str, list[str]] = {}
    for address in envelope.recipients:
        domains.setdefault(domain_of(address).lower(), []).append(address)
    return [envelope.copy(addresses) for addresses in domains.values()]


class Forward:
    """Sends elsewhere what matches: the first of ``rules`` (pattern, replacement) counts, as re.sub has it."""

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = [(re.compile(pattern, re.IGNORECASE), new) for pattern, new in rules]

    def __call__(self, envelope: Envelope) -> None:
        """As ``EnvelopePolicy``."""
        for address in list(envelope.recipients):
            for pattern, new in self._rules:
                changed, count = pattern.subn(new, address)
                if count:
                    envelope.rename(address, changed)
                    break


class Lookup:
    """Asks ``find`` about every recipient; it answers a mapping, or None for nothing to do.

    ``alias``: the address to send to instead. ``verp``: a domain; the recipient's message is then one of
    its own, from ``local+user=domain@verp``. ``add_headers``: fields to put before the others.
    """

    def __init__(self, find: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._find = find

    def __call__(self, envelope: Envelope) -> list[Envelope]:
        """As ``EnvelopePolicy``."""
        made: list[Envelope] = []
        rest = envelope.copy()
        for address in envelope.recipients:
            found = self._find(address)
            if not found:
                continue
            own = rest
            if "verp" in found or "add_headers" in found:
                rest.recipients.remove(address)
                own = envelope.copy([address])
                made.append(own)
            if "verp" in found and own.sender:
                local = own.sender.rpartition("@")[0]
                own.sender = verp.expand(f"{local}@{found['verp']}", address)
            for name, value in found.get("add_headers", {}).items():
                own.prepend(name, value)
            if "alias" in found:
                own.rename(address, found["alias"])
        return [rest, *made] if rest.recipients else made
