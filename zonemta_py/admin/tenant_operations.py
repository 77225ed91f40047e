"""The operations on tenants and users: who is suspended, and what they have used of their limits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from itertools import islice

from zonemta_py.admin.requests import (
    ResumeRequest,
    Row,
    SuspendedRequest,
    SuspendRequest,
    UsageRequest,
    VerifyRequest,
)
from zonemta_py.config.limits import Subject
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.suspensions import USER
from zonemta_py.queue.upkeep.inspect import held_messages

NAME_MAX = 255
RELEASED_AT_ONCE = 100  # messages


class TenantOperations:
    """A part of ``Operations``. ``verify`` looks up the domains of a tenant; ``known``: the tenants of the configuration.

    Both are None when the relay is down.
    """

    def __init__(
        self,
        queue: Queue,
        verify: Callable[[str], Awaitable[None]] | None = None,
        known: Callable[[], Collection[str]] | None = None,
    ) -> None:
        self._queue = queue
        self._verify = verify
        self._known = known

    async def verify(self, request: VerifyRequest) -> AsyncIterator[Row]:
        """A row for each domain, with ``verified``, ``checked_ms`` and ``verified_ms`` (0: never).

        Raises LocalError for a look-up when the relay is down.
        """
        if request.ask:
            if self._verify is None:
                raise LocalError("the relay that looks up the domains is not running")
            await self._verify(request.tenant)
        for domain in request.domains:
            found = self._queue.verified.get(request.tenant, domain)
            times = (found.checked_ms, found.verified_ms) if found is not None else (0, 0)
            is_verified = found is not None and found.is_verified
            yield {
                "domain": domain,
                "verified": is_verified,
                "checked_ms": times[0],
                "verified_ms": times[1],
            }

    async def suspended(self, request: SuspendedRequest) -> AsyncIterator[Row]:
        """A row for each suspended ``tenant`` or ``user``."""
        for name in self._queue.suspended.submitters():
            found, user = self._queue.suspended.get(name), name.removeprefix(USER)
            if found is not None:
                who = {"tenant": name} if user == name else {"user": user}
                yield {**who, "since_ms": found.since_ms, "reason": found.reason}

    async def usage(self, request: UsageRequest) -> AsyncIterator[Row]:
        """A row for each limit of a tenant, with ``limit``, ``used``, ``of`` and ``per_s``."""
        for row in self._queue.limits.used(Subject("tenant", request.tenant)):
            yield row

    async def suspend(self, request: SuspendRequest) -> AsyncIterator[Row]:
        """One row with ``suspended``. Raises LocalError for a tenant that the relay does not know."""
        if request.tenant and self._known is not None and request.tenant not in self._known():
            raise LocalError(f"the configuration has no tenant '{request.tenant}'")
        await self._queue.suspended.suspend(_suspended(request), request.reason)
        yield {"suspended": request.tenant or request.user}

    async def resume(self, request: ResumeRequest) -> AsyncIterator[Row]:
        """Rows with ``released``, the number of recipients so far; the last has ``resumed``.

        All held mail of the tenant or user is released, also what an operator held.
        """
        queue, released = self._queue, 0
        await queue.suspended.resume(_suspended(request))
        held = held_messages(queue.store, request.tenant, request.user)
        while step := list(islice(held, RELEASED_AT_ONCE)):
            counts = await asyncio.gather(*map(queue.operator.release, step))
            released += sum(counts)
            yield {"released": released}
        yield {"released": released, "resumed": request.tenant or request.user}


def _suspended(request: SuspendRequest | ResumeRequest) -> str:
    """The name in ``Suspensions``. Raises LocalError."""
    if bool(request.tenant) == bool(request.user):
        raise LocalError("a tenant or a user is expected")
    if (
        not (request.tenant + request.user).isprintable()
        or len(request.tenant + request.user) > NAME_MAX
    ):
        raise LocalError("that is no name of a tenant or user")
    return request.tenant or USER + request.user
