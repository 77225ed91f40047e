"""The operations that suspend and resume: tenants and users, and the sending of zones, to providers, from addresses, to domains."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from ipaddress import ip_address
from itertools import islice
from typing import NamedTuple

from zonemta_py.admin.reasons import EgressView
from zonemta_py.admin.requests import ResumeRequest, Row, SuspendedRequest, SuspendRequest
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.core.similar import no_such
from zonemta_py.events.schema import Shaped
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import SENDING, USER, Suspension
from zonemta_py.queue.upkeep.inspect import held_messages
from zonemta_py.schedule.sources import BY_SYSTEM
from zonemta_py.smtp.address import AddressError, normalise_domain

NAME_MAX = 255
RELEASED_AT_ONCE = 100  # messages
SUBMITTERS = ("tenant", "user")
KINDS = (*SUBMITTERS, *(each.removesuffix(":") for each in SENDING))

log = logging.getLogger(__name__)


class Suspendable(NamedTuple):
    """What is suspended or resumed: its kind, and its name in normal form."""

    kind: str
    name: str

    @property
    def key(self) -> str:
        """Its name in ``Suspensions``."""
        return self.name if self.kind == "tenant" else f"{self.kind}:{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SuspensionOperations:
    """A part of ``Operations``. ``egress`` knows what sends; ``tenants``: those of the configuration."""

    def __init__(
        self,
        queue: Queue,
        egress: EgressView | None = None,
        tenants: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._queue = queue
        self._egress = egress
        self._tenants = tenants

    async def suspended(self, request: SuspendedRequest) -> AsyncIterator[Row]:
        """A row for each, with its name under its kind, ``since_ms``, ``until_ms`` (0: until it is resumed) and ``reason``."""
        for key in self._queue.suspended.names():
            found, what = self._queue.suspended.get(key), _of_key(key)
            if found is not None:
                row = {what.kind: what.name, "since_ms": found.since_ms, "until_ms": found.until_ms}
                yield row | {"reason": found.reason}

    async def suspend(self, request: SuspendRequest) -> AsyncIterator[Row]:
        """One row with ``suspended``, its name in normal form; of a domain also ``not_in``, the zones with a smarthost.

        Raises LocalError for a name that the relay does not know.
        """
        what = _selected(request)
        what = self._known(what)
        until_ms = request.until_ms
        if until_ms and what.kind in SUBMITTERS:
            raise LocalError(f"a {what.kind} is suspended until it is resumed: its mail is held")
        if until_ms and until_ms <= clock.now_ms():
            raise LocalError("until_ms: that time is over")
        if not request.reason.isprintable() or len(request.reason) > NAME_MAX:
            raise LocalError(f"reason: expected at most {NAME_MAX} printable characters")
        before = self._queue.suspended.get(what.key)
        event = _event(what, "suspended", before, Suspension(1, 0, request.reason, until_ms))
        await self._queue.suspended.suspend(what.key, request.reason, until_ms, event)
        self._changed()
        log.warning("%s is %s: %s", what, _in_words(until_ms), request.reason)
        row: Row = {"suspended": what.name}
        if what.kind == "domain" and self._egress is not None:
            row["not_in"] = self._egress.smarthost_zones()
        yield row

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Row]:
        """Rows with ``released``, the number of recipients so far; the last of each has ``resumed``.

        All held mail of a tenant or user is released, also what an operator held. Raises LocalError when what is named is not
        suspended; a tenant or user may have held mail instead, of a release that was interrupted.
        """
        if request.all:
            if any(getattr(request, kind) for kind in KINDS):
                raise LocalError("all resumes everything that sends: expected no name")
            for key in self._queue.suspended.sending():
                yield await self._resume(_of_key(key))
            return
        what = _selected(request)
        may_hold = what.kind in SUBMITTERS
        if what.key not in self._queue.suspended and not (may_hold and any(self._held(what))):
            others = ", ".join(str(_of_key(key)) for key in self._queue.suspended.names())
            raise LocalError(f"{what} is not suspended; suspended: {others or 'nothing'}")
        if not may_hold:
            yield await self._resume(what)
            return
        async for row in self._release(what):
            yield row

    async def _resume(self, what: Suspendable) -> Row:
        event = _event(what, "resumed", self._queue.suspended.get(what.key), None)
        await self._queue.suspended.resume(what.key, event)
        self._changed()
        log.warning("%s is resumed", what)
        return {"released": 0, "resumed": what.name}

    async def _release(self, what: Suspendable) -> AsyncIterator[Row]:
        queue, released = self._queue, 0
        await queue.suspended.resume(what.key)
        log.warning("%s is resumed", what)
        held = self._held(what)
        while step := list(islice(held, RELEASED_AT_ONCE)):
            counts = await asyncio.gather(*map(queue.operator.release, step))
            released += sum(counts)
            yield {"released": released}
        yield {"released": released, "resumed": what.name}

    def _held(self, what: Suspendable) -> Iterator[str]:
        """The messages of a tenant or user with held recipients."""
        tenant, user = (what.name, "") if what.kind == "tenant" else ("", what.name)
        return held_messages(self._queue.store, tenant, user)

    def _known(self, what: Suspendable) -> Suspendable:
        """``what`` as the relay names it. Raises UnknownName if it does not know it."""
        kind, name = what
        if kind == "tenant" and self._tenants is not None and name not in self._tenants():
            raise UnknownName(no_such(kind, name, self._tenants()))
        if self._egress is None or kind not in ("zone", "provider", "address"):
            return what
        known = self._egress.names(kind)
        if kind == "provider" and "." in name:
            return what  # hosts that are a provider of their own, which may not have been met yet
        if kind == "address":
            name = next((each for each in known if _same_address(each, name)), name)
        if name not in known:
            raise UnknownName(no_such(kind, name, known))
        return Suspendable(kind, name)

    def _changed(self) -> None:
        if self._egress is not None:
            self._egress.changed()


def _selected(request: SuspendRequest | ResumeRequest) -> Suspendable:
    """What a request is about. Raises LocalError."""
    found = [Suspendable(kind, getattr(request, kind)) for kind in KINDS if getattr(request, kind)]
    if len(found) != 1:
        raise LocalError(f"exactly one of {', '.join(KINDS[:-1])} and {KINDS[-1]} is expected")
    kind, name = found[0]
    if not name.isprintable() or len(name) > NAME_MAX:
        raise LocalError(f"that is no name of a {kind}")
    if kind == "domain":
        try:
            return Suspendable(kind, normalise_domain(name.removesuffix(".")))
        except AddressError as exc:
            raise UnknownName(f"domain '{name}': {exc}") from exc
    if kind == "address":
        return Suspendable(kind, address_of(name))
    is_host = kind == "provider" and "." in name
    return Suspendable(kind, name.lower() if is_host else name)


def address_of(text: str) -> str:
    """An address of ours in normal form, or the word for the one that the system chooses. Raises UnknownName."""
    if text == BY_SYSTEM:
        return text
    try:
        return str(ip_address(text))
    except ValueError as exc:
        raise UnknownName(f"address: {exc}; '{BY_SYSTEM}' is the one that the system chooses") from exc


def _same_address(own: str, wanted: str) -> bool:
    return own == wanted or (own != BY_SYSTEM and str(ip_address(own)) == wanted)


def _of_key(key: str) -> Suspendable:
    kind, colon, name = key.partition(":")
    return (
        Suspendable(kind, name)
        if colon and f"{kind}:" in (USER, *SENDING)
        else Suspendable("tenant", key)
    )


def _event(
    what: Suspendable, name: str, before: Suspension | None, after: Suspension | None
) -> Shaped | None:
    """The event of a change of sending; None for tenants and users."""
    if what.kind in SUBMITTERS:
        return None
    cause = f"an operator: {what}"
    if after is not None and after.reason:
        cause += f": {after.reason}"
    return Shaped(
        time_ms=clock.now_ms(),
        provider=what.name if what.kind == "provider" else "",
        address=what.name if what.kind == "address" else "",
        what=name,
        before=_in_words(before.until_ms) if before is not None else "sending",
        after=_in_words(after.until_ms) if after is not None else "sending",
        cause=cause,
    )


def _in_words(until_ms: int) -> str:
    return f"suspended until {clock.utc(until_ms):%Y-%m-%d %H:%M:%S} UTC" if until_ms else "suspended"
