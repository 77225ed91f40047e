"""From an envelope and a header block to the message that is stored: trace and missing fields, routes. Pure."""

import re
from collections.abc import Sequence

from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import IdempotencyRecord, Origin
from zonemta_py.routing import Router
from zonemta_py.smtp import verp
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.commands import Rcpt
from zonemta_py.smtp.headers import Field, field_value, received, without

MESSAGE_ID_MAX = 998  # octets of the field that the ledger keeps
LOOP = "554 5.4.6 Too many Received fields: this looks like a mail loop"

_UNPRINTABLE = re.compile(r"[^A-Za-z0-9.:_\[\]\-]")


def stamped(
    message: str,
    header: bytes,
    fields: Sequence[Field],
    *,
    sender: str,
    recipients: Sequence[Rcpt],
    origin: Origin,
    hostname: str,
    router: Router,
    trusted_routing: bool,
    max_hops: int,
    eight_bit: bool,
    smtputf8: bool,
    ret: str,
    envid: str,
    key: tuple[str, IdempotencyRecord] | None,
    body_hash: bytes,
) -> NewMessage:
    """The message ``message`` as it is stored. Raises NotAccepted for one that goes in a circle.

    Received is added always, Message-ID and Date when they are missing; fields that route are taken out.
    """
    now_ms = clock.now_ms()
    if sum(1 for field in fields if field.name == b"received") > max_hops:
        raise NotAccepted(LOOP)
    routing = [field for field in fields if field.name in router.headers]
    values: dict[str, str] = {}
    if routing and trusted_routing:
        for field in routing:
            values.setdefault(field.name.decode(), field_value(header, field))
    message_id = first_value(header, fields, b"message-id")
    block = [
        received(
            helo=_UNPRINTABLE.sub("?", origin.helo) or "unknown",
            client_ip=origin.client_ip,
            by=hostname,
            protocol=origin.protocol,
            message_id=message,
            recipient=recipients[0].address if len(recipients) == 1 else "",
            date=clock.mail_date(now_ms),
        )
    ]
    if not message_id:
        message_id = f"<{message}@{hostname}>"
        block.append(f"Message-ID: {message_id}\r\n".encode())
    if not any(field.name == b"date" for field in fields):
        block.append(f"Date: {clock.mail_date(now_ms)}\r\n".encode())
    block.append(without(header, routing) if routing else header)
    return NewMessage(
        ret=ret,
        envid=envid,
        sender=sender,
        header=b"".join(block),
        recipients=_route(router, sender, recipients, origin.client_ip, values),
        origin=origin,
        message_id=message_id[:MESSAGE_ID_MAX],
        eight_bit=eight_bit,
        smtputf8=smtputf8,
        key=key,
        body_hash=body_hash,
    )


def _route(
    router: Router, sender: str, recipients: Sequence[Rcpt], source: str, headers: dict[str, str]
) -> list[NewRecipient]:
    sender_domain = domain_of(verp.base(sender))
    zones: dict[str, str] = {}
    routed = []
    for rcpt in recipients:
        domain = domain_of(rcpt.address)
        zone = zones.get(domain)
        if zone is None:
            zone = zones[domain] = router.route(domain, sender_domain, source, headers)
        routed.append(NewRecipient(rcpt.address, domain, zone, rcpt.notify, rcpt.orcpt))
    return routed


def first_value(header: bytes, fields: Sequence[Field], name: bytes) -> str:
    """The value of the first field ``name``, empty without one."""
    for field in fields:
        if field.name == name:
            return field_value(header, field)
    return ""
