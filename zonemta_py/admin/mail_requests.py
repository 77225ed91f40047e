"""The requests that change mail: a message, one of its recipients, or all that match."""

from collections.abc import Mapping
from typing import Any, Literal

from zonemta_py.admin.requests import ChangeRequest, ListRequest


class MailRequest(ChangeRequest, frozen=True):
    """Change a message, or only ``recipient``; without ``message`` all mail that the other fields select, None: any.

    ``tag``: one of its tags. ``dry_run``: only count.
    """

    message: str | None = None
    recipient: str | None = None
    zone: str | None = None
    domain: str | None = None
    state: Literal["waiting", "deferred", "held"] | None = None
    tenant: str | None = None
    user: str | None = None
    campaign: str | None = None
    tag: str | None = None
    dry_run: bool = False

    @property
    def selects_messages(self) -> bool:
        """Whether it selects all recipients of a message or none."""
        return (self.zone, self.domain, self.state) == (None, None, None)

    @property
    def has_filter(self) -> bool:
        """Whether anything but a message is selected."""
        labels = (self.tenant, self.user, self.campaign, self.tag)
        return not self.selects_messages or labels != (None, None, None, None)


class DeleteRequest(MailRequest, frozen=True):
    """Remove mail without a report."""


class BounceRequest(MailRequest, frozen=True):
    """Return mail to its senders; ``reason`` is in the reports."""

    reason: str = "returned by the operator"


class HoldRequest(MailRequest, frozen=True):
    """Hold mail."""


class ReleaseRequest(MailRequest, frozen=True):
    """Release held mail."""


def has_labels(request: ListRequest | MailRequest, row: Mapping[str, Any]) -> bool:
    """Whether a recipient, with the labels of its message, is of the wanted tenant, user, campaign and tag."""
    wanted = {"tenant": request.tenant, "user": request.user, "campaign": request.campaign}
    return all(value in (None, row[name]) for name, value in wanted.items()) and (
        request.tag is None or request.tag in row["tags"]
    )
