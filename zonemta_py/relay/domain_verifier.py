"""Looks up whether the domains of tenants are theirs: ``_zonemta.DOMAIN`` has a TXT record with the tenant's name."""

import asyncio
import logging
from collections.abc import Collection

from zonemta_py.config.schema import Config
from zonemta_py.config.tenants import bases
from zonemta_py.core.errors import QueueUnavailable
from zonemta_py.delivery.dns import DnsChannel, NameNotFound, QueryFailed
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.submitters.domains import TenantDomain, VerificationResult
from zonemta_py.relay.parts import Part, Prepared

PREFIX = "_zonemta"
AGAIN_MS = 86_400_000  # after a look-up that found the record
FAILED_AGAIN_MS = 3_600_000  # after another: the record may have been added since
LOOK_EVERY_S = 600.0
AT_ONCE = 10  # questions

log = logging.getLogger(__name__)


class DomainVerifier:
    """Verifies the domains of tenants with ``verify: dns``, and keeps the results in ``queue``."""

    def __init__(self, queue: Queue, config: Config) -> None:
        self._queue = queue
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.configure(config)

    def part(self) -> Part:
        """Part of the relay: start, reload and stop."""
        return Part(
            "the verification of domains",
            self.start,
            drain=self.close,
            prepare=lambda new: Prepared(lambda: self.configure(new.config)),
        )

    def configure(self, config: Config) -> None:
        """Use the configuration of a reload: new domains are looked up at once."""
        self._config = config
        self._changed.set()

    async def start(self) -> None:
        """Look up what is due, from now on."""
        self._task = asyncio.create_task(self._run(), name="verification of domains")

    async def close(self, grace_s: float) -> None:
        """End the look-ups."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            due = [pair for pair in self._domains() if self._is_due(*pair)]
            try:
                if due:
                    await self._verify(due)
            except QueueUnavailable as exc:
                log.error("the verification of domains is not stored: %s", exc)
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _domains(self, name: str | None = None) -> list[TenantDomain]:
        """The domains that are to be verified, of one tenant or of all."""
        return [
            (tenant, domain)
            for tenant, settings in self._config.tenants.items()
            if settings.verify == "dns" and name in (None, tenant)
            for domain in bases(settings.domains)
        ]

    def _is_due(self, tenant: str, domain: str) -> bool:
        found = self._queue.verified.get(tenant, domain)
        if found is None:
            return True
        wait_ms = AGAIN_MS if found.is_verified else FAILED_AGAIN_MS
        return not 0 <= self._queue.now() - found.checked_ms < wait_ms  # the clock may have been ahead

    async def verify(self, tenant: str) -> None:
        """Look up all domains of ``tenant`` now. Raises QueueUnavailable."""
        await self._verify(self._domains(tenant))

    async def _verify(self, pairs: Collection[TenantDomain]) -> None:
        resolver, turns = self._config.resolver, asyncio.Semaphore(AT_ONCE)
        channel = DnsChannel(resolver.nameservers, resolver.timeout)

        async def look_up(tenant: str, domain: str) -> VerificationResult | None:
            async with turns:
                try:
                    records = await channel.query(f"{PREFIX}.{domain}", "TXT")
                except NameNotFound:
                    records = ()
                except QueryFailed as exc:  # what was known stays
                    log.warning("%s.%s cannot be looked up: %s", PREFIX, domain, exc)
                    return None
            texts = [bytes(record.data.data).decode("ascii", "replace").strip() for record in records]
            return VerificationResult(tenant, domain, tenant in texts)

        try:
            found = await asyncio.gather(*(look_up(*pair) for pair in pairs))
        finally:
            channel.close()
        results = [result for result in found if result is not None]
        for tenant, domain, is_verified in results:
            if not is_verified and (tenant, domain) in self._queue.verified:
                log.warning("%s.%s does not name tenant %s any more", PREFIX, domain, tenant)
        await self._queue.verified.note(results)
