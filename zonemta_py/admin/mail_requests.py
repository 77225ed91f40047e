"""The requests that change mail: a message, one of its recipients, or all that match."""

from typing import Literal

from zonemta_py.admin.requests import ChangeRequest, ListRequest
from zonemta_py.queue.format.records import TENANT_LANE, RecipientRecord
from zonemta_py.queue.upkeep.inspect import MessageLabels, Wants
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.verp import base


class MailRequest(ChangeRequest, frozen=True):
    """Change a message, or only ``recipient``; without ``message`` all mail that the other fields select, None: any.

    ``sender``: of the envelope, empty for the null sender; ``sender_domain``: its domain. ``tag``: one of its tags.
    ``dry_run``: only count.
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
    sender: str | None = None
    sender_domain: str | None = None

    @property
    def selects_messages(self) -> bool:
        """Whether it selects all recipients of a message or none."""
        return (self.zone, self.domain, self.state) == (None, None, None)

    @property
    def has_filter(self) -> bool:
        """Whether anything but a message is selected."""
        labels = (self.tenant, self.user, self.campaign, self.tag, self.sender, self.sender_domain)
        return not self.selects_messages or any(each is not None for each in labels)


class DeleteRequest(MailRequest, frozen=True):
    """Remove mail without a report."""


class BounceRequest(MailRequest, frozen=True):
    """Return mail to its senders; ``reason`` is in the reports."""

    reason: str = "returned by the operator"


class HoldRequest(MailRequest, frozen=True):
    """Hold mail. ``by``: the tenant whose token asks, which may release it then; empty for the operator."""

    by: str = ""


class ReleaseRequest(MailRequest, frozen=True):
    """Release held mail. ``by``: the tenant whose token asks, what it holds itself; empty: what anyone holds."""

    by: str = ""


def wanted_messages(request: ListRequest | MailRequest, labels: MessageLabels) -> Wants | None:
    """Whether a message is of the wanted tenant, user, sender, campaign and tag; None: every one is."""
    wanted = {"tenant": request.tenant, "user": request.user, "campaign": request.campaign}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    sender, domain, tag = request.sender, request.sender_domain, request.tag
    if not wanted and (sender, domain, tag) == (None, None, None):
        return None
    tenant = request.tenant

    def wants(message: str, record: RecipientRecord) -> bool:
        # The lane says whose it is without the envelope; it is empty in a record that a repair has made.
        if tenant and record.lane and record.submitter != TENANT_LANE + tenant:
            return False
        row = labels.of(message)
        address = base(row["sender"])
        return (
            all(row[name] == value for name, value in wanted.items())
            and (sender is None or sender in (address, row["sender"]))
            and (domain is None or domain == domain_of(address))
            and (tag is None or tag in row["tags"])
        )

    return wants
