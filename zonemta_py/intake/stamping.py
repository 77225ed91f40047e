"""From an envelope and a header to the message that is stored: trace fields, missing fields, zones. Pure.

Source: RFC 5321 sections 4.4 (trace) and 6.3 (loops), RFC 6409 section 8 (missing fields).
"""

import re
from collections.abc import Collection, Container, Sequence
from functools import lru_cache
from typing import NamedTuple

from zonemta_py.config.schema import Config, ListenerSettings, MessageOptions
from zonemta_py.config.tenants import LimitRules, Tenant, Tenants, limit_rules
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import NotAccepted
from zonemta_py.intake.options import of_header
from zonemta_py.intake.scan import ACCEPT, ScanVerdict
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import NO_OPTIONS, DeliveryOptions, Origin
from zonemta_py.queue.submitters.keys import KeyUse
from zonemta_py.routing import Router
from zonemta_py.smtp.address import DOUBLE_BOUNCE, domain_of, verp_base
from zonemta_py.smtp.authors import Unreadable, author_addresses
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.headers import Field, field_value, fold, received, without

# ---- The tenant of a message, and the check of its envelope sender and authors.

VerifiedDomains = Container[tuple[str, str]]  # tenant and domain

NULL_SENDERS = ("", DOUBLE_BOUNCE)


class SenderRules:
    """The rules of one listener. ``any_sender``: users and hosts of no tenant may send as any address."""

    def __init__(self, tenants: Tenants, *, any_sender: bool) -> None:
        self.tenants = tenants
        self._has_tenants = bool(tenants)  # each message asks
        self._any_sender = any_sender

    def trusts(self, client_ip: str) -> bool:
        """True if the client is in a network of a tenant."""
        return self._has_tenants and self.tenants.of_address(client_ip) is not None

    def is_host_of(self, tenant: str, client_ip: str) -> bool:
        """True if the client is in a network of ``tenant``, or that is empty. The address may be that of a proxy of many."""
        found = self.tenants.of_address(client_ip) if tenant else None
        return not tenant or (found is not None and found.name == tenant)

    def tenant_of(self, user: str, client_ip: str) -> str:
        """The tenant of a user, or of a host without one; empty for none.

        Raises NotAccepted when it has to be one of a tenant and is not.
        """
        if not self._has_tenants:
            return ""
        tenant = self.tenants.of(user, client_ip)
        if tenant is not None:
            return tenant.name
        if not self._any_sender:
            raise NotAccepted(f"550 5.7.1 {_printable(user or client_ip)} belongs to no tenant")
        return ""

    def check_sender(
        self, tenant: str, who: str, sender: str, verified: VerifiedDomains, *, trusted: bool
    ) -> None:
        """Raises NotAccepted unless mail of ``tenant`` may have the envelope sender. ``who``: user or address."""
        found = self._find(tenant)
        if found is None:
            return
        if sender in NULL_SENDERS:
            if not trusted:
                raise NotAccepted(f"553 5.7.1 {_printable(who)} may not send with the null sender")
            return
        self._check_address(found, who, verp_base(sender), verified)

    def check_header(
        self,
        tenant: str,
        who: str,
        header: bytes,
        fields: Sequence[Field],
        verified: VerifiedDomains,
    ) -> None:
        """Raises NotAccepted unless all authors in From and Sender are addresses of ``tenant``."""
        found = self._find(tenant)
        if found is None:
            return
        try:
            authors = author_addresses(header, fields)
        except Unreadable as exc:
            raise NotAccepted(f"550 5.7.1 {_printable(str(exc))}") from exc
        for author in authors:
            self._check_address(found, who, author, verified)

    def _find(self, name: str) -> Tenant | None:
        """The tenant; None for mail of none. Raises NotAccepted when it was removed since."""
        found = self.tenants.get(name) if name else None
        if name and found is None:
            raise NotAccepted(f"550 5.7.1 There is no tenant {name} any more")
        return found

    def _check_address(self, tenant: Tenant, who: str, address: str, verified: VerifiedDomains) -> None:
        base = tenant.base_of(domain_of(address))
        if not base:
            raise NotAccepted(f"553 5.7.1 {_printable(who)} may not send as {_printable(address)}")
        if tenant.is_verified and (tenant.name, base) not in verified:
            raise NotAccepted(
                f"450 4.7.1 {base} is not verified: no TXT record of _zonemta.{base} is {tenant.name}"
            )


def _printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


# ---- The stamped message.

MESSAGE_ID_MAX = 998  # characters of the field that events hold
LOOP = "554 5.4.6 Too many Received fields: this looks like a mail loop"

_UNPRINTABLE = re.compile(r"[^A-Za-z0-9.:_\[\]\-]")


class MessageEnvelope(Struct, frozen=True):
    """The envelope of one message.

    ``recipients``: each address once. ``ret`` and ``envid``: see RFC 3461; empty when not given.
    """

    sender: str
    recipients: Sequence[Rcpt]
    origin: Origin
    smtputf8: bool
    ret: str = ""
    envid: str = ""
    options: DeliveryOptions = NO_OPTIONS


class MessageRules(NamedTuple):
    """The checks and stamps of the messages of one listener. ``max_size`` is in bytes.

    ``key_headers``: groups of header fields, each a submission key. ``refused_keys``: the sources of those under which
    other content is refused, in lower case. ``removed_fields``: lower-case names of
    those that route or are not for the recipients. ``dkim_domains``: those with a key. ``normalise_lines``: a bare LF is a
    line end. ``client_hidden``: the Received field does not name the client.
    """

    hostname: str
    router: Router
    senders: SenderRules
    max_size: int
    max_hops: int
    key_headers: Sequence[tuple[str, ...]]
    refused_keys: frozenset[str]
    options: MessageOptions
    removed_fields: frozenset[bytes]
    dkim_domains: Collection[str]
    policies: Sequence[EnvelopePolicy]
    limits: LimitRules
    normalise_lines: bool
    client_hidden: bool


def make_rules(
    config: Config,
    listener: ListenerSettings,
    hostname: str,
    router: Router,
    policies: Sequence[EnvelopePolicy],
) -> MessageRules:
    tenants, options = Tenants(config.tenants), listener.options
    own = (options.campaign, options.tags, options.not_before, options.expire, options.priority)
    removed = (*listener.drop_headers, *own)
    return MessageRules(
        hostname=hostname,
        router=router,
        senders=SenderRules(tenants, any_sender=listener.senders == "any"),
        max_size=listener.max_message_size,
        max_hops=listener.max_hops,
        key_headers=listener.submission_key.headers,
        refused_keys=frozenset(name.lower() for name in listener.submission_key.refuse_other_content),
        options=listener.options,
        removed_fields=router.headers | {name.lower().encode() for name in removed if name},
        dkim_domains=frozenset(entry.domain for entry in config.dkim.keys if entry.domain),
        policies=policies,
        limits=limit_rules(config.tenants, config.limits),
        normalise_lines=listener.line_endings == "normalise",
        client_hidden=listener.received == "short",
    )


class MessageContent(NamedTuple):
    """The known properties of a message's data. ``body_hash``: DKIM's, empty when not computed; ``verdict``: of a scan."""

    header: bytes
    fields: Sequence[Field]
    eight_bit: bool
    body_hash: bytes
    verdict: ScanVerdict = ACCEPT


def stamp(
    rules: MessageRules,
    envelope: MessageEnvelope,
    content: MessageContent,
    message: str,
    key: KeyUse | None,
) -> NewMessage:
    """The message to store under the id ``message``. Raises NotAccepted for a mail loop, or a zone of others.

    Received is added always, Message-ID and Date when they are missing. Fields that are not for the
    recipients are removed, and long lines folded.
    """
    header, fields = content.header, content.fields
    names = [field.name for field in fields]
    if names.count(b"received") > rules.max_hops:
        raise NotAccepted(LOOP)
    removed = _removed(rules, header, fields)
    message_id = first_value(header, fields, b"message-id")
    origin, recipients, now_ms = envelope.origin, envelope.recipients, clock.now_ms()
    date = clock.mail_date(now_ms)
    block = [received(
        helo="" if rules.client_hidden else _UNPRINTABLE.sub("?", origin.helo) or "unknown",
        client_ip=origin.client_ip, by=rules.hostname, protocol=origin.protocol, message_id=message,
        recipient=recipients[0].address if len(recipients) == 1 else "", date=date,
    )]  # fmt: skip
    if not message_id:
        message_id = f"<{message}@{rules.hostname}>"
        block.append(f"Message-ID: {message_id}\r\n".encode())
    if b"date" not in names:
        block.append(f"Date: {date}\r\n".encode())
    block += content.verdict.fields, fold(without(header, removed) if removed else header)
    # Reversed: of several fields with one name the first counts.
    values = {field.name.decode(): field_value(header, field) for field in reversed(removed)}
    labels = of_header(rules.options, values, envelope.options, now_ms)
    return NewMessage(
        sender=envelope.sender,
        header=b"".join(block),
        recipients=_route(rules, envelope, values),
        origin=origin,
        message_id=message_id[:MESSAGE_ID_MAX],
        eight_bit=content.eight_bit,
        smtputf8=envelope.smtputf8,
        ret=envelope.ret,
        envid=envelope.envid,
        key=key,
        body_hash=content.body_hash,
        campaign=labels.campaign,
        tags=labels.tags,
        options=labels.delivery,
        hold=content.verdict.hold,
        unknown_zone=rules.router.unknown_zone(values),
        ignored=labels.ignored,
    )


def _removed(rules: MessageRules, header: bytes, fields: Sequence[Field]) -> list[Field]:
    """The fields that are not for the recipients; an empty Message-ID is replaced."""
    removed = []
    for field in fields:
        name = field.name
        if name in rules.removed_fields or (name == b"message-id" and not field_value(header, field)):
            removed.append(field)
    return removed


def _route(
    rules: MessageRules, envelope: MessageEnvelope, headers: dict[str, str]
) -> list[NewRecipient]:
    """The recipients with their zones; ``headers``: values of routing fields by lower-case name."""
    router, name = rules.router, envelope.origin.tenant
    tenant = rules.senders.tenants.get(name) if name else None
    sender_domain = domain_of(verp_base(envelope.sender))
    source = envelope.origin.client_ip
    zones: dict[str, str] = {}
    routed = []
    for rcpt in envelope.recipients:
        domain = domain_of(rcpt.address)
        zone = zones.get(domain)
        if zone is None:
            zone = zones[domain] = router.route(domain, sender_domain, source, headers, tenant)
        routed.append(NewRecipient(rcpt.address, domain, zone, rcpt.notify, rcpt.orcpt))
    return routed


def first_value(header: bytes, fields: Sequence[Field], name: bytes) -> str:
    """The value of the first field with the lower-case ``name``; empty without one."""
    for field in fields:
        if field.name == name:
            return field_value(header, field)
    return ""


def key_in_header(header: bytes, fields: Sequence[Field], groups: Sequence[tuple[str, ...]]) -> str:
    """The submission key: the first of ``groups`` of fields that are all present; empty without one."""
    present = {field.name for field in fields}
    for names in groups:
        lower = lower_names(names)
        if not present.issuperset(lower):
            continue
        values = [first_value(header, fields, name) for name in lower]
        if all(values):
            return "\0".join([*names, *values])
    return ""


def key_source(key: str) -> str:
    """The first of the fields, in lower case, that a key of ``key_in_header`` is from."""
    return key.partition("\0")[0].lower()


@lru_cache(maxsize=256)
def lower_names(names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Names of header fields as they are in ``Field``."""
    return tuple(name.lower().encode() for name in names)
