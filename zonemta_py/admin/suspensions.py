"""The operations that suspend and resume: tenants and users, the sending of zones, to providers, from addresses, to domains, and parts of the mail."""

import logging
from collections.abc import AsyncIterator
from heapq import nlargest
from ipaddress import ip_address
from typing import NamedTuple

from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.relay_port import EgressView
from zonemta_py.admin.requests import (
    ResumeRequest,
    Row,
    SuspendedRequest,
    SuspendRequest,
    TenantsRequest,
    UsageRequest,
    VerifyRequest,
)
from zonemta_py.admin.views import census_of
from zonemta_py.config.tenants import Subject
from zonemta_py.core import clock
from zonemta_py.core.codec import UNSET, Unset
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.core.text import no_such
from zonemta_py.egress.sources import BY_SYSTEM
from zonemta_py.events.schema import Shaped
from zonemta_py.queue.format.records import LABEL_MAX
from zonemta_py.queue.suspensions import (
    MAIL,
    SENDING,
    USER,
    MailPart,
    Suspension,
    Suspensions,
    part_of_key,
)
from zonemta_py.smtp.address import AddressError, normalise_domain

log = logging.getLogger(__name__)


NAME_MAX = 255
SUBMITTERS = ("tenant", "user")
KINDS = (*SUBMITTERS, *(each.removesuffix(":") for each in SENDING))
OF_NO_TABLE = "One that is in no table has the name of its MX host, with a dot: `zonemta queue summary --by destination` shows it."
PART = "mail"  # the kind of a part of the mail


class Suspendable(NamedTuple):
    """The mail that is suspended or resumed: its kind, and its name in normal form. ``part``: of the mail, without a name."""

    kind: str
    name: str
    part: MailPart | None = None

    @property
    def key(self) -> str:
        """Its name in ``Suspensions``."""
        if self.part is not None:
            return self.part.key
        return self.name if self.kind == "tenant" else f"{self.kind}:{self.name}"

    @property
    def holds(self) -> bool:
        """True if its mail is held, and released when it is resumed."""
        return self.part is not None or self.kind in SUBMITTERS

    @property
    def fields(self) -> Row:
        """Its fields in a row: the name by its kind; of a part of the mail, its names by theirs."""
        if self.part is not None:
            return {PART: {kind: name for kind, name in self.part._asdict().items() if name}}
        return {self.kind: self.name}

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.part is None else f"mail of {self.part}"


class TenantRow(Answer, frozen=True):
    """A tenant with mail, and its number of recipients."""

    tenant: str
    queued: int


@operation("tenants")
async def tenants(on: Operations, request: TenantsRequest) -> AsyncIterator[TenantRow]:
    """Yield a row for each that has mail, most first."""
    queued = (await census_of(on)).tenants()
    for name, count in nlargest(request.limit, queued.items(), key=lambda item: item[1]):
        yield TenantRow(name, count)


class SuspendedRow(Answer, frozen=True, kw_only=True):
    """A suspension, named by its kind; ``mail``: a part of the mail, by the names of its campaign, tenant, zone, provider or domain.

    ``until_ms`` is unix ms; 0: until it is resumed.
    """

    tenant: str | Unset = UNSET
    user: str | Unset = UNSET
    zone: str | Unset = UNSET
    provider: str | Unset = UNSET
    address: str | Unset = UNSET
    domain: str | Unset = UNSET
    mail: dict[str, str] | Unset = UNSET
    since_ms: int
    until_ms: int
    reason: str


class SuspendRow(Answer, frozen=True):
    """The name of what is suspended in normal form. ``not_in``: of a domain, the zones with a smarthost, where it has no effect.

    ``warning``: of a provider of which nothing is known.
    """

    suspended: str
    not_in: list[str] | Unset = UNSET
    warning: str | Unset = UNSET


class ResumeRow(Answer, frozen=True):
    """The number of recipients that are released so far; the last row of each suspension has ``resumed``, its name."""

    released: int
    resumed: str | Unset = UNSET


@operation("suspended")
async def suspended(on: Operations, request: SuspendedRequest) -> AsyncIterator[SuspendedRow]:
    """Yield a row for each."""
    for key in on.queue.suspended.names():
        found = on.queue.suspended.get(key)
        if found is not None:
            yield SuspendedRow(
                **_of_key(key).fields,
                since_ms=found.since_ms,
                until_ms=found.until_ms,
                reason=found.reason,
            )


@operation("suspend")
async def suspend(on: Operations, request: SuspendRequest) -> AsyncIterator[SuspendRow]:
    """Yield one row. Raises LocalError for a name that the relay does not know."""
    what = _known(on, _selected(request))
    until_ms = request.until_ms
    if until_ms and until_ms <= clock.now_ms():
        raise LocalError("until_ms: that time is over")
    if until_ms > clock.TIME_MAX_MS:
        raise LocalError("until_ms: expected unix milliseconds, before the year 10000")
    reason = request.reason.strip()
    if not reason or not reason.isprintable() or len(reason) > NAME_MAX:
        raise LocalError(f"reason: expected 1 to {NAME_MAX} printable characters")
    before = on.queue.suspended.get(what.key)
    event = _event(what, "suspended", before, Suspension(1, 0, reason, until_ms))
    await on.queue.suspended.suspend(what.key, reason, until_ms, event)
    _changed(on)
    log.warning("%s is %s: %s", what, _in_words(until_ms), reason)
    egress, not_in, warning = on.relay.egress, None, ""
    if egress is not None:
        not_in = egress.smarthost_zones() if what.kind == "domain" else None
        provider = what.part.provider if what.part else what.name if what.kind == "provider" else ""
        if provider and provider not in egress.names("provider"):
            warning = f"no mail for a provider '{provider}' is known. {OF_NO_TABLE}"
    yield SuspendRow(
        suspended=what.name or str(what),
        not_in=UNSET if not_in is None else not_in,
        warning=warning or UNSET,
    )


@operation("resume")
async def resume(on: Operations, request: ResumeRequest) -> AsyncIterator[ResumeRow]:
    """Yield rows while held mail is released.

    All held mail of a tenant or user is released, also what an operator held. Raises LocalError when what is named is not
    suspended; a tenant, a user or a part may have held mail instead, of a release that was interrupted.
    """
    if request.all:
        if any(getattr(request, kind) for kind in (*KINDS, "campaign")):
            raise LocalError("all resumes everything that sends: expected no name")
        for key in on.queue.suspended.sending():
            yield ResumeRow(0, await _resume(on, _of_key(key)))
        return
    what = _selected(request)
    queue = on.queue
    if what.key not in queue.suspended and not (what.holds and on.held_mail.is_any(what.key)):
        others = ", ".join(str(_of_key(key)) for key in queue.suspended.names())
        raise LocalError(f"{what} is not suspended; suspended: {others or 'nothing'}")
    released, resumed = 0, await _resume(on, what)
    if what.holds:
        async for released in on.held_mail.release(what.key):
            yield ResumeRow(released)
    yield ResumeRow(released, resumed)


async def _resume(on: Operations, what: Suspendable) -> str:
    event = _event(what, "resumed", on.queue.suspended.get(what.key), None)
    await on.queue.suspended.resume(what.key, event)
    _changed(on)
    log.warning("%s is resumed", what)
    return what.name or str(what)


def _known(on: Operations, what: Suspendable) -> Suspendable:
    """``what`` as the relay names it. Raises UnknownName if it does not know it."""
    if what.part is None:
        return Suspendable(what.kind, _known_name(on, what.kind, what.name))
    named = {
        kind: _known_name(on, kind, name) if name else "" for kind, name in what.part._asdict().items()
    }
    return Suspendable(PART, "", MailPart(**named))


def _known_name(on: Operations, kind: str, name: str) -> str:
    if kind == "tenant" and on.relay.tenants is not None and name not in on.relay.tenants():
        raise UnknownName(no_such(kind, name, on.relay.tenants()))
    if on.relay.egress is None or kind not in ("zone", "provider", "address"):
        return name
    return known_name(on.relay.egress, kind, name)


def _changed(on: Operations) -> None:
    if on.relay.egress is not None:
        on.relay.egress.changed()


def _selected(request: SuspendRequest | ResumeRequest) -> Suspendable:
    """The mail that a request is about. Raises UnknownName."""
    found = {kind: getattr(request, kind) for kind in (*KINDS, "campaign") if getattr(request, kind)}
    if "campaign" in found or (len(found) == 2 and "tenant" in found):
        others = found.keys() - {"tenant", "campaign"}
        if len(others) > 1 or not others <= {"zone", "provider", "domain"}:
            raise UnknownName(
                "beside a tenant or a campaign one of zone, provider and domain is expected, or none"
            )
        return Suspendable(PART, "", MailPart(**{k: _normal(k, name) for k, name in found.items()}))
    if len(found) != 1:
        raise UnknownName(
            f"one of {', '.join(KINDS[:-1])} and {KINDS[-1]} is expected, or campaign or tenant with one of them"
        )
    ((kind, name),) = found.items()
    return Suspendable(kind, _normal(kind, name))


def _normal(kind: str, name: str) -> str:
    """``name`` in normal form. Raises UnknownName."""
    name = name.strip()
    most = LABEL_MAX if kind == "campaign" else NAME_MAX
    if not name or not name.isprintable() or len(name) > most:
        raise UnknownName(f"that is no name of a {kind}: expected 1 to {most} printable characters")
    if kind == "domain":
        try:
            return normalise_domain(name.removesuffix("."))
        except AddressError as exc:
            raise UnknownName(f"domain '{name}': {exc}") from exc
    if kind == "address":
        return address_of(name)
    is_host = kind == "provider" and "." in name
    return name.lower() if is_host else name


def known_name(egress: EgressView, kind: str, name: str) -> str:
    """A zone, provider or address as the relay names it. Raises UnknownName."""
    known = egress.names(kind)
    if kind == "provider" and "." in name:
        return name  # hosts that are a provider of their own, which may not have been met yet
    if kind == "address":
        name = next((each for each in known if _same_address(each, name)), name)
    if name not in known:
        more = f" {OF_NO_TABLE}" if kind == "provider" else ""
        raise UnknownName(no_such(kind, name, known) + more)
    return name


def address_of(text: str) -> str:
    """An source address in normal form, or the word for the one that the system chooses. Raises UnknownName."""
    if text == BY_SYSTEM:
        return text
    try:
        return str(ip_address(text))
    except ValueError as exc:
        raise UnknownName(f"address: {exc}; '{BY_SYSTEM}' is the one that the system chooses") from exc


def _same_address(own: str, wanted: str) -> bool:
    return own == wanted or (own != BY_SYSTEM and str(ip_address(own)) == wanted)


def _of_key(key: str) -> Suspendable:
    if key.startswith(MAIL):
        return Suspendable(PART, "", part_of_key(key))
    kind, colon, name = key.partition(":")
    if colon and f"{kind}:" in (USER, *SENDING):
        return Suspendable(kind, name)
    return Suspendable("tenant", key)


def suspended_names(suspended: Suspensions) -> list[tuple[str, str]]:
    """The kind and the name of each suspension: zones, providers, addresses and domains first."""
    found = [_of_key(key) for key in suspended.names()]
    found.sort(key=lambda each: each.holds)
    return [(each.kind, str(each.part) if each.part is not None else each.name) for each in found]


def _event(
    what: Suspendable, name: str, before: Suspension | None, after: Suspension | None
) -> Shaped | None:
    """The event of a change of sending; None for tenants and users."""
    if what.kind in SUBMITTERS:
        return None
    cause = f"an operator: {what}"
    if after is not None and after.reason:
        cause += f": {after.reason}"
    provider = what.part.provider if what.part is not None else ""
    return Shaped(
        time_ms=clock.now_ms(),
        provider=what.name if what.kind == "provider" else provider,
        address=what.name if what.kind == "address" else "",
        what=name,
        before=_in_words(before.until_ms) if before is not None else "sending",
        after=_in_words(after.until_ms) if after is not None else "sending",
        cause=cause,
    )


def _in_words(until_ms: int) -> str:
    return f"suspended until {clock.utc(until_ms):%Y-%m-%d %H:%M:%S} UTC" if until_ms else "suspended"


# ---- tenants: whether their domains are verified, and what they have used of their limits


class VerifyRow(Answer, frozen=True):
    """A domain; when it was looked up, and found verified, the last time (unix ms; 0: never)."""

    domain: str
    verified: bool
    checked_ms: int
    verified_ms: int


@operation("verify")
async def verify(on: Operations, request: VerifyRequest) -> AsyncIterator[VerifyRow]:
    """Yield a row for each domain. Raises LocalError for a look-up when the relay is down."""
    if request.ask:
        if on.relay.verify is None:
            raise LocalError("the relay that looks up the domains is not running")
        await on.relay.verify(request.tenant)
    for domain in request.domains:
        found = on.queue.verified.get(request.tenant, domain)
        times = (found.checked_ms, found.verified_ms) if found is not None else (0, 0)
        is_verified = found is not None and found.is_verified
        yield VerifyRow(domain, is_verified, *times)


class UsageRow(Answer, frozen=True):
    """A limit: ``used`` of ``of`` in ``per_s`` seconds; 0 for what is open now."""

    limit: str
    of: int
    per_s: float
    used: int


@operation("usage", rows=(UsageRow,))
async def usage(on: Operations, request: UsageRequest) -> AsyncIterator[Row]:
    """Yield a row for each limit of a tenant."""
    for row in on.queue.limits.used(Subject("tenant", request.tenant)):
        yield row
