"""The table of operations, made from the declarations of the topic files, and what holds for all: arguments, limits, tenants."""

from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from types import ModuleType
from typing import Any

from zonemta_py.admin import egress, events, mail, messages, relay_state, suspensions, views
from zonemta_py.admin.operation import Operation, Operations
from zonemta_py.admin.requests import (
    ChangeRequest,
    ClassifyRequest,
    FlushRequest,
    HistoryRequest,
    HoldRequest,
    ListRequest,
    MailRequest,
    ReleaseRequest,
    Request,
    Row,
    TailRequest,
)
from zonemta_py.core.codec import from_plain, replace, to_plain
from zonemta_py.core.errors import LocalError, NotFound, UnknownName
from zonemta_py.core.model import RENAMED_STATES
from zonemta_py.queue.census import zones_on_disk
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain


def table(modules: Iterable[ModuleType]) -> dict[str, Operation]:
    """The operations that ``modules`` declare, by name, in their order."""
    found = (each for module in modules for each in vars(module).values())
    return {each.name: each for each in found if isinstance(each, Operation)}


OPERATIONS = table((views, messages, mail, suspensions, egress, relay_state, events))
_BY_REQUEST = {operation.request: operation for operation in OPERATIONS.values()}


def run_operation(operations: Operations, request: Request) -> AsyncIterator[Row]:
    """The rows of the answer as plain values. They raise LocalError when the operation fails; a wrong argument does at once."""
    return _plain(execute(operations, request))


async def _plain(rows: Any) -> AsyncIterator[Row]:
    async with aclosing(rows):
        async for row in rows:
            yield row if isinstance(row, dict) else to_plain(row)


def execute(operations: Operations, request: Request) -> AsyncIterator[Any]:
    """The rows as ``run_operation`` has them, as structs or dicts, for an encoder."""
    operation, request = operation_of(request), _normalised(request)
    limit: int | None = getattr(request, "limit", None)
    if limit is not None and not 1 <= limit <= (operation.limit_max or limit):
        raise LocalError(
            f"limit: expected 1 {f'to {operation.limit_max}' if operation.limit_max else 'or more'}"
        )
    if request.knows_zone:
        _require_zone(operations, getattr(request, "zone", None))
    for name, known in request.choices.items():
        if getattr(request, name) not in (None, *known):
            raise LocalError(f"{name}: expected one of {', '.join(known)}")
    return operation.handler(operations, request)


_NORMAL = (
    ("domain", normalise_domain),
    ("recipient", normalise),
    ("sender", normalise),
    ("sender_domain", normalise_domain),
)


def _normalised(request: Request) -> Request:
    """``request`` with its domains and addresses as the queue has them, and the present name of a state. Raises LocalError."""
    if not request.normalises:
        return request
    state = getattr(request, "state", None)
    if state in RENAMED_STATES:
        request = replace(request, state=RENAMED_STATES[state])
    if getattr(request, "sender", None) == "<>":
        request = replace(request, sender="")
    for name, normal in _NORMAL:
        value: str | None = getattr(request, name, None)
        if value:
            try:
                request = replace(request, **{name: normal(value)})
            except AddressError as exc:
                raise LocalError(f"{name}: {exc}") from exc
    return request


def _require_zone(operations: Operations, zone: str | None) -> None:
    """Raises UnknownName for a zone that the running relay does not have, and that has no mail."""
    zones = operations.relay.zones
    if zone and zones and zone not in zones and zone not in zones_on_disk(operations.queue.store):
        raise UnknownName(f"zone: there is no zone '{zone}'")


def operation_of(request: Request) -> Operation:
    """The operation that executes ``request``."""
    return _BY_REQUEST[type(request)]


def parse_request(name: str, arguments: object) -> Request:
    """The request of operation ``name``. Raises LocalError for an unknown operation or a wrong argument."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise LocalError(f"unknown operation '{name}'; operations: {', '.join(OPERATIONS)}")
    try:
        return from_plain(arguments, operation.request)
    except ValueError as exc:
        raise LocalError(f"{name}: {exc}") from exc


def restrict(operations: Operations, request: Request, tenant: str) -> Request:
    """``request`` for the mail of ``tenant`` only, if it is not empty: what belongs to others does not exist for its tokens.

    What is not named here is refused. Raises NotFound, PermissionError.
    """
    if not tenant or isinstance(request, ClassifyRequest):
        return request
    if isinstance(request, (ListRequest, TailRequest, HistoryRequest)):
        return replace(request, tenant=tenant)
    if isinstance(request, MailRequest) and request.message is None and request.has_filter:
        if isinstance(request, ReleaseRequest):
            raise PermissionError("name the message: a scanner may have had some of these held")
        request = replace(request, tenant=tenant)
        return replace(request, by=tenant) if isinstance(request, HoldRequest) else request
    message = getattr(request, "message", None)
    if message is not None:
        _check_owner(operations, request, message, tenant)
        changes_owner = isinstance(request, (HoldRequest, ReleaseRequest))
        return replace(request, by=tenant) if changes_owner else request
    if getattr(request, "tenant", None) == tenant and not isinstance(request, ChangeRequest):
        return request
    raise PermissionError(f"this token is for the mail of the tenant '{tenant}' only")


def _check_owner(operations: Operations, request: Request, message: str, tenant: str) -> None:
    queue = operations.queue
    if messages.tenant_of(queue, message) != tenant:
        raise NotFound(f"no message {message} in the queue")
    if isinstance(request, FlushRequest):
        raise PermissionError("a flush tries destinations of all tenants")
    if isinstance(request, ReleaseRequest) and messages.is_quarantined(queue, message):
        raise PermissionError("the scanner had this message held: the operator decides")
    if isinstance(request, ReleaseRequest) and not messages.may_release(queue, message, tenant):
        raise PermissionError("this message is not held by a token of the tenant: the operator decides")
