"""Suspensions by an operator. Stored under ``meta/suspended/``.

The mail of a suspended tenant or user is neither accepted nor sent. Mail of a suspended zone, to a suspended provider or
domain, or from a suspended address is accepted and waits. A part of the mail (``MailPart``: a campaign, what a tenant sends to a
provider) is accepted and not sent. States of a suspension::

    suspended ─ resume ─▶ removed
        └─ its time is over ─▶ ended: it does not count, and is stored until its end is recorded ─ resume ─▶ removed

Invariants:

- A change applies from the call on, to the next lease; ``suspend`` and ``resume`` return when it is on disk.
- Mail that is leased for a tenant, a user or a part is held, so that a suspension costs nothing for mail that is not due; it is
  released when the suspension ends (``HeldMail``).
- ``version`` grows with each change, also with an end by time when that is noticed; those that have copies wait for it.
- A suspension of what is suspended keeps the time of the first one.

Callers: ``Queue.suspended``: operations change it; egress, intake and ``HeldMail`` ask it, and ``HeldMail`` ends what is over;
``processes.receivers`` tells receivers of changes.

Example: ``await suspended.suspend("zone:bulk", "complaints", until_ms)``; ``"zone:bulk" in suspended`` is True until then.
"""

import asyncio
from collections.abc import Callable, Container
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.events.schema import Event, Shaped
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT, EnvelopeRecord
from zonemta_py.storage.interface import Store

USER = "user:"  # in front of the name of a user; tenants have no colon in theirs
SENDING = ("zone:", "provider:", "address:", "domain:")  # in front of the names of what does not send
MAIL = "mail:"  # in front of the name of a part of the mail


class MailPart(NamedTuple):
    """The mail of a tenant or a campaign, or of both, in a zone, to a provider, or to a domain. Empty: of all."""

    tenant: str = ""
    campaign: str = ""
    zone: str = ""
    provider: str = ""
    domain: str = ""

    @property
    def key(self) -> str:
        """Its name in ``Suspensions``: MAIL and the fields as a query string."""
        return MAIL + urlencode([each for each in self._asdict().items() if each[1]])

    def __str__(self) -> str:
        words = {"zone": "in zone", "provider": "to provider", "domain": "to domain"}
        return " ".join(f"{words.get(k, k)} {name}" for k, name in self._asdict().items() if name)

    def has(self, meta: EnvelopeRecord, zone: str, provider: str, domain: str) -> bool:
        """True if a recipient of the message ``meta`` belongs to it."""
        return (
            self.tenant in ("", meta.origin.tenant)
            and self.campaign in ("", meta.campaign)
            and self.zone in ("", zone)
            and self.provider in ("", provider)
            and self.domain in ("", domain)
        )


def part_of_key(name: str) -> MailPart:
    """The part whose ``key`` is ``name``."""
    return MailPart(**dict(parse_qsl(name.removeprefix(MAIL))))


def suspended_submitter(suspended: Container[str], tenant: str, user: str) -> str:
    """The name in ``Suspensions`` of the tenant or else the user, if one is suspended; empty for neither."""
    if tenant in suspended:
        return tenant
    return USER + user if user and USER + user in suspended else ""


def suspended_part(suspended: Container[str], tenant: str, user: str) -> str:
    """Who of tenant and user is suspended, such as ``User ann``; empty for neither."""
    name = suspended_submitter(suspended, tenant, user)
    return f"{named(name)[0].upper()}{named(name)[1:]}" if name else ""


def named(name: str) -> str:
    """A suspension as text; ``name``: as in ``Suspensions``."""
    if name.startswith(MAIL):
        return f"mail of {part_of_key(name)}"
    if name.startswith(SENDING):
        return name.replace(":", " ", 1)
    return f"user {name.removeprefix(USER)}" if name.startswith(USER) else f"tenant {name}"


class Suspension(NamedTuple):
    """``meta/suspended/NAME``: since when (unix ms), why, and until when; 0: until it is resumed."""

    version: int
    since_ms: int
    reason: str
    until_ms: int = 0


_read = unpacker(Suspension)


class Suspensions(Container[str]):
    """The suspensions of a queue: tenants by name, others by a word, a colon and their name. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._commits = commits
        self._now = now
        prefix = keys.META_SUSPENDED
        rows = store.scan(prefix, keys.end_of(prefix))
        self._by_name = {key[len(prefix) :].decode(): _read(value) for key, value in rows}
        self._parts: tuple[tuple[MailPart, str], ...] = ()
        # Stored until their end is recorded, and mail that is held for them is released.
        self._ended: set[str] = set()
        self._change = asyncio.Event()
        self.version = 0  # greater after each change
        self._list_parts()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __bool__(self) -> bool:
        return bool(self._by_name)

    async def wait_for_change(self, version: int) -> int:
        """Wait until ``version`` is out of date; returns the present one."""
        while self.version == version:
            await self._change.wait()
        return self.version

    def names(self) -> list[str]:
        """All that is suspended."""
        return sorted(name for name in list(self._by_name) if name in self)

    def submitters(self) -> list[str]:
        """The tenants and users that are suspended."""
        return [name for name in self.names() if not name.startswith((MAIL, *SENDING))]

    def sending(self) -> list[str]:
        """The zones, providers, addresses and domains that are suspended."""
        return [name for name in self.names() if name.startswith(SENDING)]

    def parts(self) -> list[str]:
        """The parts of the mail that are suspended."""
        return [name for name in self.names() if name.startswith(MAIL)]

    def ended(self) -> set[str]:
        """Those whose time is over, which is to be recorded; mail that is held for them is to be released."""
        self.names()
        return set(self._ended)

    def next_end_ms(self) -> int:
        """When the next suspension is over (unix ms); 0 if none has an end."""
        return min(filter(None, (each.until_ms for each in self._by_name.values())), default=0)

    def get(self, name: str) -> Suspension | None:
        """The suspension of ``name``, if it is not over."""
        found = self._by_name.get(name)
        if found is None or not 0 < found.until_ms <= self._now():
            return found
        del self._by_name[name]
        self._ended.add(name)
        self._has_changed()
        return None

    def of_recipient(self, meta: EnvelopeRecord, zone: str, provider: str, domain: str) -> str:
        """The name of a suspended part to which a recipient belongs; empty for none."""
        for part, name in self._parts:
            if part.has(meta, zone, provider, domain) and name in self:
                return name
        return ""

    async def suspend(
        self, name: str, reason: str, until_ms: int = 0, event: Event | None = None
    ) -> None:
        """Suspend; the time of an earlier suspension stays. ``event`` is recorded. Raises QueueUnavailable."""
        before = self.get(name)
        found = Suspension(FORMAT, before.since_ms if before else self._now(), reason, until_ms)
        over = end_event(name, self._now()) if name in self._ended else None
        batch = _batch_with(over, event)
        batch.put(keys.META_SUSPENDED + name.encode(), pack(found))
        self._by_name[name] = found  # before it is on disk: it applies from the next lease on
        self._ended.discard(name)
        self._has_changed()
        await self._commits.submit(batch)

    async def resume(self, name: str, event: Event | None = None) -> None:
        """End a suspension, or forget one that is over; ``event`` is recorded. Raises QueueUnavailable.

        When it returns, all that was ever held for it is on disk.
        """
        batch = _batch_with(event)
        batch.delete(keys.META_SUSPENDED + name.encode())
        self._by_name.pop(name, None)  # before it is on disk: nothing is held for it from now on
        self._ended.discard(name)
        self._has_changed()
        await self._commits.submit(batch)

    def _list_parts(self) -> None:
        self._parts = tuple((part_of_key(name), name) for name in self._by_name if name.startswith(MAIL))

    def _has_changed(self) -> None:
        self.version += 1
        self._list_parts()
        self._change.set()
        self._change = asyncio.Event()


def _batch_with(*events: Event | None) -> WriteBatch:
    batch = WriteBatch()
    for event in events:
        if event is not None:
            batch.record(event)
    return batch


def end_event(name: str, now_ms: int) -> Shaped | None:
    """The event of a suspension whose time is over; None for a tenant or a user."""
    provider = address = ""
    if name.startswith(MAIL):
        what, provider = named(name), part_of_key(name).provider
    elif name.startswith(SENDING):
        what, (kind, _, value) = named(name), name.partition(":")
        provider, address = (value if kind == each else "" for each in ("provider", "address"))
    else:
        return None
    return Shaped(
        time_ms=now_ms, provider=provider, address=address, what="resumed", before="suspended", after="sending",
        cause=f"its time is over: {what}",
    )  # fmt: skip
