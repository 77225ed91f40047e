"""Envelope policies: functions of the user that change a message's envelope and header at intake. Pure.

A policy is called with an ``Envelope`` after the header has been received and before the body is stored. It
modifies the envelope, or returns the envelopes that replace it. Source: python-slimta's queue policies.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from zonemta_py.smtp.address import DOUBLE_BOUNCE, domain_of, expand_verp, normalise, verp_base
from zonemta_py.smtp.headers import field_value, is_header, scan

__all__ = [
    "Client",
    "Envelope",
    "EnvelopePolicy",
    "Forward",
    "Lookup",
    "run_policies",
    "split_by_domain",
    "split_by_recipient",
]

_FIELD_NAME = re.compile(r"[\x21-\x39\x3b-\x7e]+\Z")


class Client(NamedTuple):
    """The client that submitted the message. ``user`` is empty without AUTH, ``tenant`` without tenants."""

    ip: str
    helo: str
    user: str
    protocol: str
    tenant: str = ""


class RcptParameters(Protocol):
    """The address and parameters that a client sent at RCPT."""

    @property
    def address(self) -> str:
        """Address of the recipient, as ``Envelope.recipients`` has it."""


class Envelope:
    """Sender, recipients and header block (each field ends in CRLF) of one message."""

    def __init__(
        self, sender: str, asked: Iterable[RcptParameters], header: bytes, client: Client
    ) -> None:
        self._asked = {each.address: each for each in asked}
        self.sender = sender
        self.recipients = list(self._asked)
        self.header = header
        self.client = client

    def copy(self, recipients: Iterable[str] | None = None) -> "Envelope":
        """An independent copy, with ``recipients`` if given."""
        other = Envelope(self.sender, (), self.header, self.client)
        other.recipients = list(self.recipients if recipients is None else recipients)
        other._asked = dict(self._asked)
        return other

    def rename(self, address: str, new: str) -> None:
        """Replace recipient ``address`` by ``new``, which inherits the client's DSN parameters.

        Raises AddressError (a ValueError).
        """
        new = normalise(new)
        self.recipients = list(
            dict.fromkeys(new if each == address else each for each in self.recipients)
        )
        if address in self._asked:
            self._asked.setdefault(new, self._asked[address])

    def asked(self, address: str) -> Any:
        """The RCPT parameters of the recipient that became ``address``; None for one that a policy added."""
        return self._asked.get(address)

    def field(self, name: str) -> str:
        """The value of the first field ``name``, or an empty text."""
        wanted = name.lower().encode()
        for field in scan(self.header)[0]:
            if field.name == wanted:
                return field_value(self.header, field)
        return ""

    def prepend(self, name: str, value: str) -> None:
        """Insert a field before the others. Raises ValueError if it is not a valid field."""
        if not _FIELD_NAME.match(name) or not value.isprintable():
            raise ValueError(f"{name}: {value!r} is not a header field")
        self.header = f"{name}: {value}\r\n".encode() + self.header


EnvelopePolicy = Callable[[Envelope], Envelope | Iterable[Envelope] | None]


def run_policies(policies: Sequence[EnvelopePolicy], envelope: Envelope) -> list[Envelope]:
    """The envelopes that result from ``envelope``; each policy gets the results of the one before.

    Recipients are normalised, and envelopes without recipients are dropped. Raises the exceptions of the
    policies, and ValueError or TypeError for an envelope that cannot be stored.
    """
    envelopes = [envelope]
    for policy in policies:
        envelopes = [result for each in envelopes for result in _run(policy, each)]
    for each in envelopes:
        _check(each)
    return [each for each in envelopes if each.recipients]


def _check(envelope: Envelope) -> None:
    if not isinstance(envelope, Envelope) or not isinstance(envelope.header, bytes):
        raise TypeError(
            f"a policy returned {envelope!r}, which is not an Envelope whose header is bytes"
        )
    if not is_header(envelope.header):
        raise ValueError(
            f"a policy set a header that is not a valid header block: {envelope.header[:200]!r}"
        )
    if envelope.sender not in ("", DOUBLE_BOUNCE):
        normalise(verp_base(envelope.sender))
    for address in list(envelope.recipients):
        envelope.rename(address, address)


def _run(policy: EnvelopePolicy, envelope: Envelope) -> Iterable[Envelope]:
    result = policy(envelope)
    if result is None:
        return (envelope,)
    return (result,) if isinstance(result, Envelope) else result


def split_by_recipient(envelope: Envelope) -> list[Envelope]:
    """One message for each recipient."""
    return [envelope.copy([address]) for address in envelope.recipients]


def split_by_domain(envelope: Envelope) -> list[Envelope]:
    """One message for each recipient domain, in the order of their first recipient."""
    domains: dict[str, list[str]] = {}
    for address in envelope.recipients:
        domains.setdefault(domain_of(address).lower(), []).append(address)
    return [envelope.copy(addresses) for addresses in domains.values()]


class Forward:
    """Replaces recipients by ``rules``: (pattern, replacement) as in re.sub; the first that matches applies."""

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules = [(re.compile(pattern, re.IGNORECASE), new) for pattern, new in rules]

    def __call__(self, envelope: Envelope) -> None:
        """Apply the rules to every recipient. Raises AddressError for an invalid replacement."""
        for address in list(envelope.recipients):
            for pattern, new in self._rules:
                changed, count = pattern.subn(new, address)
                if count:
                    envelope.rename(address, changed)
                    break


class Lookup:
    """Calls ``find`` with every recipient; it returns a mapping, or None to leave the recipient unchanged.

    ``alias``: the address that replaces the recipient. ``verp``: a domain; the recipient gets a separate
    message with the sender ``local+user=domain@verp``. ``add_headers``: fields to insert before the others,
    also in a separate message.
    """

    def __init__(self, find: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._find = find

    def __call__(self, envelope: Envelope) -> list[Envelope]:
        """Return the common envelope, if it still has recipients, and the separate ones."""
        separate: list[Envelope] = []
        common = envelope.copy()
        for address in envelope.recipients:
            found = self._find(address)
            if not found:
                continue
            own = common
            if "verp" in found or "add_headers" in found:
                common.recipients.remove(address)
                own = envelope.copy([address])
                separate.append(own)
            if "verp" in found and own.sender:
                local = own.sender.rpartition("@")[0]
                own.sender = expand_verp(f"{local}@{found['verp']}", address)
            for name, value in found.get("add_headers", {}).items():
                own.prepend(name, value)
            if "alias" in found:
                own.rename(address, found["alias"])
        return [common, *separate] if common.recipients else separate
