"""The operations on tenants: whether their domains are verified, and what they have used of their limits."""

from collections.abc import AsyncIterator, Awaitable, Callable

from zonemta_py.admin.requests import Row, UsageRequest, VerifyRequest
from zonemta_py.config.limits import Subject
from zonemta_py.core.errors import LocalError
from zonemta_py.queue.queue import Queue


class TenantOperations:
    """A part of ``Operations``. ``verify`` looks up the domains of a tenant; None when the relay is down."""

    def __init__(self, queue: Queue, verify: Callable[[str], Awaitable[None]] | None = None) -> None:
        self._queue = queue
        self._verify = verify

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

    async def usage(self, request: UsageRequest) -> AsyncIterator[Row]:
        """A row for each limit of a tenant, with ``limit``, ``used``, ``of`` and ``per_s``."""
        for row in self._queue.limits.used(Subject("tenant", request.tenant)):
            yield row
