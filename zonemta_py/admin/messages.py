"""The operations that show recipients and messages. They change nothing.

``queue.upkeep.inspect`` makes the rows, and the structs here say what they have.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator

from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.reasons import Reasons, SuspendedMail
from zonemta_py.admin.requests import (
    BodyRequest,
    ListRequest,
    MailRequest,
    Row,
    ShowRequest,
    StateRequest,
    WhyRequest,
)
from zonemta_py.admin.views import SLICE_ROWS, suspended_mail
from zonemta_py.core.codec import to_plain
from zonemta_py.core.errors import LocalError, NotFound, QueueCorrupt
from zonemta_py.egress.paths import Constraint
from zonemta_py.queue.format.keys import deferred_key, mark_key, meta_key, waiting_key
from zonemta_py.queue.format.records import (
    TENANT_FLOW,
    RecipientRecord,
    RecipientState,
    read_meta,
    read_recipient_record,
)
from zonemta_py.queue.messages import read_message, recipients_of
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.inspect import (
    MessageLabels,
    Wants,
    message_row,
    recipient_rows,
    state_of_message,
)
from zonemta_py.smtp.address import domain_of, verp_base


class RecipientRow(Answer, frozen=True):
    """A recipient. ``index``: its position in the message, from 0. ``code``, ``status`` and ``reply``: the last reply.

    ``due_ms``: when a deferred one is due (unix ms; 0: it waits, or is held). ``cursor``: for ``after``. ``why`` it waits.
    """

    message: str
    recipient: str
    zone: str
    domain: str
    state: str
    attempts: int
    created_ms: int
    due_ms: int
    code: int
    status: str
    reply: str
    index: int
    cursor: str
    tenant: str
    user: str
    sender: str
    campaign: str
    tags: list[str]
    why: Constraint


@operation("list", rows=(RecipientRow,))
async def list_recipients(on: Operations, request: ListRequest) -> AsyncIterator[Row]:
    """Yield a row for each recipient, in the order of the keys."""
    found, labels, reasons = 0, MessageLabels(on.queue.store), Reasons(on.queue, on.relay)
    suspended = suspended_mail(on)
    for number, row in enumerate(_rows_after(on, request, labels)):
        is_passed = "message" not in row
        if is_passed or number % SLICE_ROWS == 0:
            await asyncio.sleep(0)
        if is_passed:
            continue
        record = row.pop("record")
        row["state"] = _state(on, row, suspended)
        if request.domain not in (None, row["domain"]) or request.state not in (None, row["state"]):
            continue
        row.update(labels.of(row["message"]))
        row["why"] = to_plain(reasons.of(row["zone"], row["message"], row["recipient"], record))
        yield row
        found += 1
        if found == request.limit:
            return


def _rows_after(on: Operations, request: ListRequest, labels: MessageLabels) -> Iterator[Row]:
    """The recipients behind ``request.after``. Raises LocalError."""
    try:
        is_held = request.state == RecipientState.HELD.name.lower()
        after = request.after.encode()
        wants = wanted_messages(request, labels)
        return recipient_rows(on.queue.store, request.zone, after, held=is_held, wants=wants)
    except ValueError as exc:
        raise LocalError(f"after: {exc}") from exc


def wanted_messages(request: ListRequest | MailRequest, labels: MessageLabels) -> Wants | None:
    """Return whether a message is of the wanted tenant, user, sender, campaign and tag; None: every one is."""
    wanted = {"tenant": request.tenant, "user": request.user, "campaign": request.campaign}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    sender, domain, tag = request.sender, request.sender_domain, request.tag
    if not wanted and (sender, domain, tag) == (None, None, None):
        return None
    tenant = request.tenant

    def wants(message: str, record: RecipientRecord) -> bool:
        # The flow says whose it is without the envelope; it is empty in a record that a repair has made.
        if tenant and record.flow and record.submitter != TENANT_FLOW + tenant:
            return False
        row = labels.of(message)
        address = verp_base(row["sender"])
        return (
            all(row[name] == value for name, value in wanted.items())
            and (sender is None or sender in (address, row["sender"]))
            and (domain is None or domain == domain_of(address))
            and (tag is None or tag in row["tags"])
        )

    return wants


def _state(on: Operations, row: Row, suspended: SuspendedMail) -> str:
    """One of STATES, for a recipient that waits by what the running relay knows."""
    state: str = row["state"]
    if state == "waiting":
        zone, windows = row["zone"], on.queue.windows
        window = windows.zone(zone)
        if window.is_leased(waiting_key(zone, row["message"], row["recipient"])):
            return "in_flight"
        destination = windows.destination_of(zone, row["domain"])
        if window.is_unreachable(destination):
            return "unreachable"
        if suspended.has(zone, destination):
            return "suspended"
    return state


class DeliveryWishes(Answer, frozen=True):
    """The wishes of the submitter; times are unix ms, 0 for none. ``quarantined``: a scanner had it held."""

    not_before_ms: int
    expires_ms: int
    silent: bool
    notify_ms: int
    priority: str
    quarantined: bool


class OriginRow(Answer, frozen=True):
    """The client that submitted a message; all empty for a report."""

    listener: str
    client_ip: str
    helo: str
    user: str
    protocol: str
    tenant: str


class RecipientOfMessage(Answer, frozen=True):
    """A recipient of a message, with the last reply, and ``notify`` and ``orcpt`` of RFC 3461.

    ``uncertain``: attempts in a row that a crash interrupted. ``source``: the address of the last attempt. ``held_by``: the tenant
    whose token holds it. ``blocked``: attempts that were refused because of our address.
    """

    index: int
    recipient: str
    zone: str
    state: str
    version: int
    domain: str
    attempts: int
    uncertain: int
    due_ms: int
    last_ms: int
    code: int
    status: str
    text: str
    notify: int
    orcpt: str
    source: str
    reply_class: str
    held_by: str
    blocked: int
    submitter: str
    why: Constraint


class MessageRow(Answer, frozen=True):
    """A message without its body. ``report_for``: the id of the message that a report is about. ``transactions`` under way."""

    message: str
    sender: str
    created_ms: int
    body_bytes: int
    chunks: int
    eight_bit: bool
    smtputf8: bool
    report_for: str
    campaign: str
    tags: list[str]
    options: DeliveryWishes
    origin: OriginRow
    header: str
    transactions: int
    recipients: list[RecipientOfMessage]


@operation("show", rows=(MessageRow,))
async def show(on: Operations, request: ShowRequest) -> AsyncIterator[Row]:
    """Yield one row. Raises LocalError when there is no such message."""
    yield _message(on, request.message)


def _message(on: Operations, message: str) -> Row:
    with on.queue.store.frozen() as view:
        row = message_row(view, message)
    if row is None:
        raise no_message(message)
    reasons, suspended = Reasons(on.queue, on.relay), suspended_mail(on)
    for recipient in row["recipients"]:
        record = recipient.pop("record")
        recipient["state"] = _state(on, {**recipient, "message": message}, suspended)
        why = reasons.of(recipient["zone"], message, recipient["recipient"], record)
        recipient["why"] = to_plain(why)
    return row


class WhyRow(Answer, frozen=True):
    """A recipient, and why it is still waiting."""

    recipient: str
    zone: str
    state: str
    why: Constraint


@operation("why", rows=(WhyRow,))
async def why(on: Operations, request: WhyRequest) -> AsyncIterator[Row]:
    """Yield a row for each recipient. Raises LocalError when there is none."""
    found = False
    for recipient in _message(on, request.message)["recipients"]:
        if request.recipient in (None, recipient["recipient"]):
            found = True
            yield {name: recipient[name] for name in ("recipient", "zone", "state", "why")}
    if not found:
        raise no_message(f"{request.message} to {request.recipient}")


class BodyRow(Answer, frozen=True):
    """A part of a message, in base64."""

    chunk: str


@operation("body")
async def body(on: Operations, request: BodyRequest) -> AsyncIterator[BodyRow]:
    """Yield the message in chunks. Raises LocalError when there is no such message or it is damaged."""
    require_message(on.queue, request.message)
    try:
        active = on.queue.acquire_message(request.message)
        try:
            yield _chunk(active.meta.header + b"\r\n")
            async for chunk in on.queue.bodies.stream(active):
                yield _chunk(chunk)
                await asyncio.sleep(0)
        finally:
            on.queue.release_message(active)
    except QueueCorrupt as exc:
        if on.queue.store.get(mark_key(request.message)) is None:
            raise LocalError(f"message {request.message} has left the queue while it was read") from exc
        raise LocalError(str(exc)) from exc


def _chunk(chunk: bytes) -> BodyRow:
    return BodyRow(base64.b64encode(chunk).decode())


class KannaderRow(Answer, frozen=True):
    """A recipient that remains: queued, or in flight."""

    index: int
    recipient: str
    kannader: str


class StateRow(Answer, frozen=True):
    """A message by the states of qmail, S1 to S5 with their ``meaning``, and of Kannader: ``pending cleanup``, or empty."""

    message: str
    qmail: str
    meaning: str
    kannader: str
    recipients: list[KannaderRow]


@operation("state", rows=(StateRow,))
async def state(on: Operations, request: StateRequest) -> AsyncIterator[Row]:
    """Yield one row."""
    with on.queue.store.frozen() as view:
        yield state_of_message(view, request.message)


def no_message(text: str) -> NotFound:
    """The error that an operation raises for a message that is not there."""
    if "@" in text.partition(" ")[0]:
        return NotFound(
            f"{text} is no queue id: `zonemta history` finds the messages to an address, `zonemta queue list` those that wait"
        )
    return NotFound(f"no message {text} in the queue; `zonemta history` has those that have left it")


def require_message(queue: Queue, message: str, recipient: str | None = None) -> None:
    """Raises LocalError when there is no such message, or recipient of it."""
    store = queue.store
    if store.get(mark_key(message)) is None:
        raise no_message(message)
    if recipient is None:
        return
    try:
        zones = read_message(store, message)[0].zones
    except QueueCorrupt as exc:
        raise LocalError(str(exc)) from exc
    places = (waiting_key, deferred_key)
    if all(store.get(place(zone, message, recipient)) is None for zone in zones for place in places):
        raise no_message(f"{message} to {recipient}")


# ---- what a token of a tenant may change


def tenant_of(queue: Queue, message: str) -> str | None:
    """Return whose mail a message is; None when there is no such message."""
    if queue.store.get(mark_key(message)) is None:
        return None
    tenant: str = MessageLabels(queue.store).of(message)["tenant"]
    return tenant


def is_quarantined(queue: Queue, message: str) -> bool:
    """True if a scanner had the message held."""
    value = queue.store.get(meta_key(message))
    return value is not None and read_meta(value).options.quarantined


def may_release(queue: Queue, message: str, tenant: str) -> bool:
    """True if ``tenant`` itself holds recipients of the message, or if they are not held."""
    value, is_held = queue.store.get(meta_key(message)), False
    zones = read_meta(value).zones if value is not None else ()
    for _, found in recipients_of(queue.store, message, zones):
        record = read_recipient_record(found)
        if record.state is RecipientState.HELD:
            is_held = True
            if record.held_by == tenant:
                return True
    return not is_held
