"""The requests of the operations: a struct for each, with its arguments as fields."""

from collections.abc import Mapping
from typing import Any

from zonemta_py.core.codec import Struct

Row = dict[str, Any]  # of an answer


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of an operation. Subclasses without fields have none."""


class ChangeRequest(Request, frozen=True):
    """A request that changes the queue; every other one only reads it."""


class SummaryRequest(Request, frozen=True):
    """Count recipients per zone."""


class ListRequest(Request, frozen=True):
    """List recipients; None: do not filter. ``state``: one of ``queue.depths.STATES``. ``tag``: one of its tags.

    ``after``: the ``cursor`` of the last row of the page before.
    """

    zone: str | None = None
    domain: str | None = None
    state: str | None = None
    limit: int | None = None
    tenant: str | None = None
    user: str | None = None
    campaign: str | None = None
    tag: str | None = None
    after: str = ""

    def has_labels(self, row: Mapping[str, Any]) -> bool:
        """Whether a recipient is of the wanted tenant, user, campaign and tag."""
        wanted = {"tenant": self.tenant, "user": self.user, "campaign": self.campaign}
        return all(value in (None, row[name]) for name, value in wanted.items()) and (
            self.tag is None or self.tag in row["tags"]
        )


class ShowRequest(Request, frozen=True):
    """Show a message without its body."""

    message: str


class WhyRequest(Request, frozen=True):
    """Explain why the recipients of a message, or ``recipient``, do not move."""

    message: str
    recipient: str | None = None


class BodyRequest(Request, frozen=True):
    """Read a message: rows with ``chunk``, base64."""

    message: str


class StateRequest(Request, frozen=True):
    """Classify a message by the states of qmail and Kannader."""

    message: str


class FlushRequest(ChangeRequest, frozen=True):
    """Make deferred recipients due now; None: do not filter."""

    zone: str | None = None
    domain: str | None = None
    message: str | None = None


class DeleteRequest(ChangeRequest, frozen=True):
    """Remove a message, or only ``recipient``."""

    message: str
    recipient: str | None = None


class BounceRequest(ChangeRequest, frozen=True):
    """Return a message to its sender, or only ``recipient``; ``reason`` is in the report."""

    message: str
    recipient: str | None = None
    reason: str = "returned by the operator"


class HoldRequest(ChangeRequest, frozen=True):
    """Hold a message, or only ``recipient``."""

    message: str
    recipient: str | None = None


class ReleaseRequest(ChangeRequest, frozen=True):
    """Release a held message, or only ``recipient``."""

    message: str
    recipient: str | None = None


class TenantsRequest(Request, frozen=True):
    """List the suspended tenants and users."""


class SuspendRequest(ChangeRequest, frozen=True):
    """Suspend a tenant, or a user."""

    tenant: str = ""
    user: str = ""
    reason: str = "an operator"


class ResumeRequest(ChangeRequest, frozen=True):
    """End the suspension of a tenant, or of a user, and release the held mail."""

    tenant: str = ""
    user: str = ""


class UsageRequest(Request, frozen=True):
    """Show what a tenant has used of its limits."""

    tenant: str


class VerifyRequest(Request, frozen=True):
    """Show whether the domains of a tenant are verified; with ``ask`` after looking them up."""

    tenant: str
    domains: tuple[str, ...] = ()
    ask: bool = True


class UnreachableRequest(Request, frozen=True):
    """List addresses whose connections timed out; ``clear`` removes one, or ``all``, from the list."""

    clear: str | None = None


class ReloadRequest(Request, frozen=True):
    """Read the configuration again."""


class CheckRequest(Request, frozen=True):
    """Verify the queue: a row for each problem, then their number."""


class AuditRequest(Request, frozen=True):
    """Read every recipient and the outbox in one snapshot, for ``zonemta audit``."""


class StatsRequest(Request, frozen=True):
    """Read the counters of the running relay."""
