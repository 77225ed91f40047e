"""The requests of the operations: a struct for each, with its arguments as fields; its docstring is the help of the operation.

They are apart from the handlers because every command imports them: this file imports nothing of the queue. The name of an
operation is that of its request: ``suspend`` for ``SuspendRequest``. ``operation`` says how one is added.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from zonemta_py.core.codec import Struct
from zonemta_py.core.model import STATES

Row = dict[str, Any]  # of an answer
RATE_KINDS = ("zone", "destination", "source", "tenant")


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of an operation. Subclasses without fields have none.

    ``normalises``: domains and addresses are taken in the form that the queue has. ``choices``: the values of arguments.
    ``knows_zone``: a zone that there is not is an error, because an empty answer would look as if all were well.
    """

    normalises: ClassVar[bool] = False
    knows_zone: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}


def name_of_type(request: type[Request]) -> str:
    """The name of the operation of a type of requests."""
    return request.__name__.removesuffix("Request").lower()


def name_of(request: Request) -> str:
    """The name of the operation, which is that of its command: ``list`` for a ListRequest."""
    return name_of_type(type(request))


class ChangeRequest(Request, frozen=True):
    """A request that changes the queue; every other one only reads it."""


class SummaryRequest(Request, frozen=True):
    """Count recipients per zone."""


class StatusRequest(Request, frozen=True):
    """Show the version, processes, readiness, queue depths, rates and suspensions of the relay."""


class RatesRequest(Request, frozen=True):
    """Show what was attempted in the last 1, 5 or 60 ``minutes``; ``kind``: zone, destination, source or tenant."""

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"kind": RATE_KINDS}
    minutes: int = 5
    kind: str | None = None
    limit: int = 20


class ShapeRequest(Request, frozen=True):
    """Count recipients by destination and age, like Postfix's qshape; the ``limit`` largest destinations."""

    normalises: ClassVar[bool] = True
    knows_zone: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"state": STATES}
    zone: str | None = None
    state: str | None = None
    limit: int = 20


class DestinationsRequest(Request, frozen=True):
    """List the destinations with most recipients, and what keeps their mail waiting.

    ``troubled``: only those that something keeps waiting, or where attempts failed in the last 5 minutes.
    """

    knows_zone: ClassVar[bool] = True
    zone: str | None = None
    troubled: bool = False
    limit: int = 20


class ListRequest(Request, frozen=True):
    """List recipients; None: do not filter. ``state``: as the answer has it. ``tag``: one of its tags.

    ``sender``: of the envelope, empty for the null sender; ``sender_domain``: its domain.
    ``after``: the ``cursor`` of the last row of the page before.
    """

    normalises: ClassVar[bool] = True
    knows_zone: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"state": STATES}
    zone: str | None = None
    domain: str | None = None
    state: str | None = None
    limit: int | None = None
    tenant: str | None = None
    user: str | None = None
    campaign: str | None = None
    tag: str | None = None
    after: str = ""
    sender: str | None = None
    sender_domain: str | None = None


class ShowRequest(Request, frozen=True):
    """Show a message without its body."""

    message: str


class WhyRequest(Request, frozen=True):
    """Explain why the recipients of a message, or ``recipient``, are still waiting."""

    normalises: ClassVar[bool] = True
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

    normalises: ClassVar[bool] = True
    zone: str | None = None
    domain: str | None = None
    message: str | None = None


class TenantsRequest(Request, frozen=True):
    """Count the recipients of each tenant."""

    limit: int = 100


class SuspendedRequest(Request, frozen=True):
    """List what is suspended: tenants, users, zones, providers, addresses, domains, and parts of the mail."""


class SuspendRequest(ChangeRequest, frozen=True):
    """Suspend one of these, or a part of the mail.

    The mail of a tenant or a user; the sending of a zone, to a provider, from an address, or to a domain. A part of the mail: that
    of a campaign, or of a tenant, or of both, in a zone, to a provider, or to a domain. ``until_ms`` is unix ms; 0: until
    it is resumed.
    """

    tenant: str = ""
    user: str = ""
    reason: str = "an operator"
    zone: str = ""
    provider: str = ""
    address: str = ""
    domain: str = ""
    until_ms: int = 0
    campaign: str = ""


class ResumeRequest(ChangeRequest, frozen=True):
    """End a suspension, named as in ``SuspendRequest``, and release the mail that is held for it.

    ``all``: everything but tenants, users and parts of the mail.
    """

    tenant: str = ""
    user: str = ""
    zone: str = ""
    provider: str = ""
    address: str = ""
    domain: str = ""
    all: bool = False
    campaign: str = ""


class WarmupRequest(Request, frozen=True):
    """Show the progress of the warm-up of each address."""

    address: str = ""


class WarmupPauseRequest(ChangeRequest, frozen=True):
    """Pause the warm-up of an address at the number of today; without ``provider`` all its schedules."""

    address: str
    provider: str = ""


class WarmupContinueRequest(ChangeRequest, frozen=True):
    """Continue the warm-up of an address; without ``provider`` all its schedules."""

    address: str
    provider: str = ""


class ShapingRequest(Request, frozen=True):
    """Show what is sent from each address to each provider, and what limits it."""

    provider: str = ""
    address: str = ""


class ShapingEndRequest(ChangeRequest, frozen=True):
    """End the lowered pace or the pause of an address at a provider, or the move of a pool's mail to another one."""

    provider: str
    address: str = ""
    pool: str = ""


class ClassifyRequest(Request, frozen=True):
    """Classify a reply of a server by the rules of the relay. ``phase``: connect, mail, rcpt, data or dot."""

    text: str
    phase: str = ""


class UsageRequest(Request, frozen=True):
    """Show what a tenant has used of its limits."""

    tenant: str


class VerifyRequest(Request, frozen=True):
    """Show whether the domains of a tenant are verified; with ``ask`` after looking them up."""

    tenant: str
    domains: tuple[str, ...] = ()
    ask: bool = True


class UnreachableRequest(Request, frozen=True):
    """List addresses whose connections timed out."""


class UnreachableClearRequest(ChangeRequest, frozen=True):
    """Remove an address, or ``all``, from the list of those whose connections timed out: it is tried again at once."""

    address: str


class LoginRequest(Request, frozen=True):
    """Make a link that logs in to the page once, with all permissions."""


class ReloadRequest(Request, frozen=True):
    """Read the configuration again; ``file``: its path, so that a client which means another file has an error."""

    file: str | None = None


class HistoryRequest(Request, frozen=True):
    """Find the events of a message, an address or a Message-ID; ``since_ms``: nothing older (unix ms)."""

    key: str
    since_ms: int = 0
    limit: int = 1000
    tenant: str | None = None


class TailRequest(Request, frozen=True):
    """Watch the events as they happen; None: do not filter. ``event``: delivered, deferred, …"""

    event: str | None = None
    zone: str | None = None
    domain: str | None = None
    tenant: str | None = None
    message: str | None = None

    def wants(self, record: Mapping[str, Any]) -> bool:
        """True if an event is asked for."""
        wanted = {"event": self.event, "zone": self.zone, "domain": self.domain}
        wanted |= {"tenant": self.tenant, "message": self.message}
        return all(value is None or record.get(name) == value for name, value in wanted.items())


class TraceRequest(Request, frozen=True):
    """Watch the SMTP dialogues of a domain, a message (queue id) or an IP address, ``target``, as they happen."""

    target: str


LogLevel = Literal["debug", "info", "warning", "error"]


class LogLevelRequest(Request, frozen=True):
    """Change which messages the running relay logs: debug, info, warning or error, and above."""

    level: LogLevel


class CheckRequest(Request, frozen=True):
    """Verify the queue: a row for each problem, then their number."""


class AuditRequest(Request, frozen=True):
    """Read every recipient and the outbox in one snapshot, for ``zonemta audit``."""


class StatsRequest(Request, frozen=True):
    """Read the counters of the running relay."""


# ---- The requests that change mail: a message, one of its recipients, or all that match.


class MailRequest(ChangeRequest, frozen=True):
    """Change a message, or only ``recipient``; without ``message`` all mail that the other fields select, None: any.

    ``sender``: of the envelope, empty for the null sender; ``sender_domain``: its domain. ``tag``: one of its tags.
    ``dry_run``: only count.
    """

    normalises: ClassVar[bool] = True
    knows_zone: ClassVar[bool] = True
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
        """True if it selects all recipients of a message or none."""
        return (self.zone, self.domain, self.state) == (None, None, None)

    @property
    def has_filter(self) -> bool:
        """True if anything but a message is selected."""
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
