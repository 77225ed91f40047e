"""Every operation in one table: its name (that of its command), its request type and its handler."""

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from zonemta_py.admin.mail_requests import (
    BounceRequest,
    DeleteRequest,
    HoldRequest,
    MailRequest,
    ReleaseRequest,
)
from zonemta_py.admin.operations import Operations
from zonemta_py.admin.requests import (
    AuditRequest,
    BodyRequest,
    ChangeRequest,
    CheckRequest,
    ClassifyRequest,
    DestinationsRequest,
    FlushRequest,
    HistoryRequest,
    ListRequest,
    LoginRequest,
    LogLevelRequest,
    RatesRequest,
    ReloadRequest,
    Request,
    ResumeRequest,
    Row,
    ShapeRequest,
    ShapingEndRequest,
    ShapingRequest,
    ShowRequest,
    StateRequest,
    StatsRequest,
    StatusRequest,
    SummaryRequest,
    SuspendedRequest,
    SuspendRequest,
    TailRequest,
    TenantsRequest,
    TraceRequest,
    UnreachableClearRequest,
    UnreachableRequest,
    UsageRequest,
    VerifyRequest,
    WarmupContinueRequest,
    WarmupPauseRequest,
    WarmupRequest,
    WhyRequest,
)
from zonemta_py.admin.tokens import Role
from zonemta_py.admin.view_operations import KINDS
from zonemta_py.core.codec import from_plain, replace
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import STATES
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain


class Operation(NamedTuple):
    """An entry of the table. ``least``: the role that it needs, if not that of its kind.

    ``in_body``: its arguments hold addresses, which do not belong into a URL.
    ``limit_max``: the largest ``limit`` that it takes, if it takes one; None: any from 1 on.
    """

    name: str
    request: type[Request]
    handler: Callable[[Operations, Any], AsyncIterator[Row]]
    least: Role | None = None
    in_body: bool = False
    limit_max: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.least is not None or issubclass(self.request, ChangeRequest)

    @property
    def method(self) -> str:
        """Of its HTTP request."""
        return "POST" if self.changes or self.in_body else "GET"

    @property
    def role(self) -> Role:
        """What the token of an HTTP client must be for."""
        return self.least or (Role.OPERATE if self.changes else Role.READ)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("summary", SummaryRequest, Operations.summary),
        Operation("shape", ShapeRequest, Operations.shape),
        Operation("status", StatusRequest, Operations.status),
        Operation("rates", RatesRequest, Operations.rates),
        Operation("destinations", DestinationsRequest, Operations.destinations),
        Operation("list", ListRequest, Operations.list),
        Operation("show", ShowRequest, Operations.show),
        Operation("why", WhyRequest, Operations.why),
        Operation("body", BodyRequest, Operations.body),
        Operation("state", StateRequest, Operations.state),
        Operation("flush", FlushRequest, Operations.flush),
        Operation("delete", DeleteRequest, Operations.delete),
        Operation("bounce", BounceRequest, Operations.bounce),
        Operation("hold", HoldRequest, Operations.hold),
        Operation("release", ReleaseRequest, Operations.release),
        Operation("tenants", TenantsRequest, Operations.tenants),
        Operation("suspended", SuspendedRequest, Operations.suspended),
        Operation("suspend", SuspendRequest, Operations.suspend),
        Operation("resume", ResumeRequest, Operations.resume),
        Operation("warmup", WarmupRequest, Operations.warmup),
        Operation("warmuppause", WarmupPauseRequest, Operations.pause),
        Operation("warmupcontinue", WarmupContinueRequest, Operations.go_on),
        Operation("shaping", ShapingRequest, Operations.shaping),
        Operation("shapingend", ShapingEndRequest, Operations.end_pace),
        Operation("verify", VerifyRequest, Operations.verify),
        Operation("usage", UsageRequest, Operations.usage),
        Operation("unreachable", UnreachableRequest, Operations.unreachable),
        Operation("unreachableclear", UnreachableClearRequest, Operations.clear_unreachable),
        Operation("login", LoginRequest, Operations.login, Role.ADMIN),
        Operation("reload", ReloadRequest, Operations.reload, Role.ADMIN),
        Operation("loglevel", LogLevelRequest, Operations.log_level, Role.ADMIN),
        Operation("history", HistoryRequest, Operations.history, limit_max=10_000),
        Operation("tail", TailRequest, Operations.tail),
        Operation("trace", TraceRequest, Operations.trace),
        Operation("check", CheckRequest, Operations.check),
        Operation("audit", AuditRequest, Operations.audit),
        Operation("stats", StatsRequest, Operations.stats),
        Operation("classify", ClassifyRequest, Operations.classify, in_body=True),
    )
}
_BY_REQUEST = {operation.request: operation for operation in OPERATIONS.values()}


def run_operation(operations: Operations, request: Request) -> AsyncIterator[Row]:
    """The rows of the answer. They raise LocalError when the operation fails; a wrong argument does at once."""
    operation, request = operation_of(request), _normalised(request)
    limit: int | None = getattr(request, "limit", None)
    if limit is not None and not 1 <= limit <= (operation.limit_max or limit):
        raise LocalError(
            f"limit: expected 1 {f'to {operation.limit_max}' if operation.limit_max else 'or more'}"
        )
    _check_names(operations, request)
    rows: AsyncIterator[Row] = operation.handler(operations, request)
    return rows


_NORMAL = (
    ("domain", normalise_domain),
    ("recipient", normalise),
    ("sender", normalise),
    ("sender_domain", normalise_domain),
)


def _normalised(request: Request) -> Request:
    """``request`` with its domains and addresses as the queue has them. Raises LocalError."""
    if not isinstance(request, (ListRequest, FlushRequest, WhyRequest, MailRequest)):
        return request
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


def _check_names(operations: Operations, request: Request) -> None:
    """Raises LocalError for what no row can have: an empty answer would look as if all were well."""
    if isinstance(request, (ListRequest, ShapeRequest, DestinationsRequest, MailRequest)):
        operations.require_zone(request.zone)
    choices: dict[str, tuple[str, ...]] = {}
    if isinstance(request, (ListRequest, ShapeRequest)):
        choices = {"state": STATES}
    elif isinstance(request, RatesRequest):
        choices = {"kind": KINDS}
    for name, known in choices.items():
        if getattr(request, name) not in (None, *known):
            raise LocalError(f"{name}: expected one of {', '.join(known)}")


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
