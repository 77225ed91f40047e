"""The domains of tenants that are verified by DNS. Stored under ``meta/verified/``."""

import asyncio
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from zonemta_py.core.codec import pack, unpacker
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import FORMAT
from zonemta_py.storage.interface import Store

TenantDomain = tuple[str, str]  # the name of a tenant, and a domain without "*."


class Verification(NamedTuple):
    """``meta/verified/TENANT/DOMAIN``. Times are unix ms; ``verified_ms`` of the last success, 0 for none."""

    version: int
    is_verified: bool
    checked_ms: int
    verified_ms: int


class VerificationResult(NamedTuple):
    """The answer of DNS about a domain."""

    tenant: str
    domain: str
    is_verified: bool


_read = unpacker(Verification)


class Verifications(Container[TenantDomain]):
    """The domains that were looked up. Contains those that are verified. ``now`` gives unix ms."""

    def __init__(self, store: Store, commits: GroupCommit, now: Callable[[], int]) -> None:
        self._commits = commits
        self._now = now
        prefix = keys.META_VERIFIED
        self._by_domain: dict[TenantDomain, Verification] = {}
        for key, value in store.scan(prefix, keys.end_of(prefix)):
            tenant, domain = key[len(prefix) :].decode().split("/")
            self._by_domain[tenant, domain] = _read(value)
        self.changed = asyncio.Event()

    def __contains__(self, pair: object) -> bool:
        found = self._by_domain.get(pair)  # type: ignore[call-overload]  # any object may be asked for
        return found is not None and found.is_verified

    def get(self, tenant: str, domain: str) -> Verification | None:
        """The last answer about a domain of a tenant; None: there was none."""
        return self._by_domain.get((tenant, domain))

    def verified(self) -> list[TenantDomain]:
        return [pair for pair, found in self._by_domain.items() if found.is_verified]

    async def note(self, results: Iterable[VerificationResult]) -> None:
        """Store what DNS has said now. Raises QueueUnavailable."""
        batch, now_ms = WriteBatch(), self._now()
        for tenant, domain, is_verified in results:
            before = self._by_domain.get((tenant, domain))
            last_ms = now_ms if is_verified else before.verified_ms if before is not None else 0
            found = Verification(FORMAT, is_verified, now_ms, last_ms)
            if (before is not None and before.is_verified) != is_verified:
                self.changed.set()
            self._by_domain[tenant, domain] = found
            batch.put(keys.META_VERIFIED + f"{tenant}/{domain}".encode(), pack(found))
        if batch.ops:
            await self._commits.submit(batch)
