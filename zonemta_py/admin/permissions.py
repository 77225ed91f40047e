"""What a token of a tenant may ask: what belongs to others does not exist for it."""

from zonemta_py.admin.mail_requests import HoldRequest, MailRequest, ReleaseRequest
from zonemta_py.admin.operations import Operations
from zonemta_py.admin.requests import (
    ChangeRequest,
    ClassifyRequest,
    FlushRequest,
    HistoryRequest,
    ListRequest,
    Request,
    TailRequest,
)
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotFound


def restrict(operations: Operations, request: Request, tenant: str) -> Request:
    """``request`` for the mail of ``tenant`` only, if it is not empty. Raises NotFound, PermissionError."""
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
        if operations.tenant_of(message) != tenant:
            raise NotFound(f"no message {message} in the queue")
        if isinstance(request, FlushRequest):
            raise PermissionError("a flush tries destinations of all tenants")
        if isinstance(request, ReleaseRequest) and operations.is_quarantined(message):
            raise PermissionError("the scanner had this message held: the operator decides")
        if isinstance(request, ReleaseRequest) and not operations.may_release(message, tenant):
            raise PermissionError(
                "this message is not held by a token of the tenant: the operator decides"
            )
        return (
            replace(request, by=tenant)
            if isinstance(request, (HoldRequest, ReleaseRequest))
            else request
        )
    if getattr(request, "tenant", None) == tenant and not isinstance(request, ChangeRequest):
        return request
    raise PermissionError(f"this token is for the mail of the tenant '{tenant}' only")
