"""The MTA-STS policies of domains: looked up, fetched and cached, each once at a time.

A domain without a policy, or whose policy can be had neither from its server nor from the cache, is served as if
it asked for nothing (RFC 8461 section 5.1). The cache is of this process and ends with it (decision 127).
"""

import asyncio
import logging
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.smtp.mta_sts import POLICY_MAX_BYTES, StsPolicy, parse_policy, policy_id
from zonemta_py.smtp.mx_order import Host, allowed
from zonemta_py.transports.connect import verifying_context

HTTPS_PORT = 443
FETCH_S = 10.0  # mail of the domain waits for it
FETCHES_MAX = 100  # at the same time
RETRY_S = 300.0  # after a fetch that failed (RFC 8461 section 3.3: no sooner)
CACHE_MAX = 50_000

log = logging.getLogger(__name__)


class Trust(NamedTuple):
    """The requirements on a policy's web server: ``ca_file`` None: known to the system's authorities; ``private``: at any address."""

    ca_file: Path | None
    private: bool


class _Entry(NamedTuple):
    """``policy`` until ``expires_s``, by the TXT record with ``id``, which is looked up again at ``recheck_s`` (monotonic)."""

    policy: StsPolicy | None
    id: str
    expires_s: float
    recheck_s: float


_NONE = _Entry(None, "", 0.0, 0.0)
_Key = tuple[str, Trust]


class StsPolicies:
    """Policies by domain; ``of`` is quick for a domain that was asked for lately."""

    def __init__(self, resolver: MxResolver) -> None:
        self._resolver = resolver
        self._cache = OrderedDict[_Key, _Entry]()
        self._running: dict[_Key, asyncio.Task[_Entry]] = {}
        self._fetches = asyncio.Semaphore(FETCHES_MAX)

    async def permitted(
        self, domain: str, hosts: tuple[Host, ...], trust: Trust
    ) -> tuple[tuple[Host, ...], str]:
        """Those of ``hosts`` that the policy permits, at least one with an address, and how to encrypt. Raises DestinationFailed.

        A policy in testing changes nothing (RFC 8461 section 5).
        """
        policy = None if domain.startswith("[") else await self.of(domain, trust)
        if policy is None or not policy.is_enforced:
            return hosts, "opportunistic"
        permitted = tuple(host for host in hosts if policy.permits(host.name))
        if any(host.ips for host in permitted):
            return permitted, "required"
        names = ", ".join(host.name for host in hosts if host.ips)
        text = f"the MTA-STS policy of {domain} does not permit its MX hosts: {names}"
        raise DestinationFailed(0, "4.7.5", text)

    async def of(self, domain: str, trust: Trust) -> StsPolicy | None:
        """The policy in force for mail to ``domain``; None: there is none."""
        key = (domain, trust)
        entry = self._cache.get(key, _NONE)
        if entry.recheck_s <= clock.monotonic_s():
            if (task := self._running.get(key)) is None:
                task = asyncio.get_running_loop().create_task(self._renew(key, entry))
                self._running[key] = task
                task.add_done_callback(lambda _: self._running.pop(key, None))
            entry = await asyncio.shield(task)  # it continues when a caller is cancelled
        return entry.policy

    def close(self) -> None:
        """End what runs."""
        for task in self._running.values():
            task.cancel()

    async def _renew(self, key: _Key, old: _Entry) -> _Entry:
        entry = await self._newer(*key, old if old.expires_s > clock.monotonic_s() else _NONE)
        self._cache[key] = entry
        self._cache.move_to_end(key)
        if len(self._cache) > CACHE_MAX:
            self._cache.popitem(last=False)
        return entry

    async def _newer(self, domain: str, trust: Trust, old: _Entry) -> _Entry:
        """A new entry; ``old`` for longer where the record is missing or unchanged, or the new policy cannot be had."""
        try:
            texts, ttl_s = await self._resolver.texts(f"_mta-sts.{domain}")
        except DestinationFailed as exc:
            log.info("%s: the MTA-STS record was not found: %s", domain, exc.text)
            return old._replace(recheck_s=clock.monotonic_s() + RETRY_S)
        recheck_s, found = clock.monotonic_s() + ttl_s, policy_id(texts)
        if found is None or found == old.id:
            return old._replace(recheck_s=recheck_s)
        try:
            async with self._fetches:
                policy = await self._fetch(domain, trust)
        except DestinationFailed as exc:
            kept = "; the one before is used" if old.policy is not None else ""
            log.warning("%s: the MTA-STS policy cannot be used: %s%s", domain, exc.text, kept)
            return old._replace(recheck_s=clock.monotonic_s() + RETRY_S)
        log.info("%s: MTA-STS policy %s: %s, %s", domain, found, policy.mode, ", ".join(policy.hosts))
        return _Entry(policy, found, clock.monotonic_s() + max(policy.max_age_s, RETRY_S), recheck_s)

    async def _fetch(self, domain: str, trust: Trust) -> StsPolicy:
        """The policy on the web server of ``domain``. Raises DestinationFailed."""
        # Imported where it is used: loading aiohttp takes a quarter of a second.
        from zonemta_py.transports.http import FetchFailed, fetch_text

        host = f"mta-sts.{domain}"
        [found] = await self._resolver.addresses_of(host)
        ips = [ip for _, ip in allowed([(host, ip) for ip in found.ips], private=trust.private)]
        if not ips:
            raise DestinationFailed(0, "4.4.4", f"{host} has only private addresses")
        url = f"https://{host}:{HTTPS_PORT}/.well-known/mta-sts.txt"
        try:
            context = verifying_context(trust.ca_file)
            return parse_policy(await fetch_text(url, ips, context, FETCH_S, POLICY_MAX_BYTES))
        except OSError as exc:  # ssl.SSLError is one
            raise DestinationFailed(0, "4.7.5", f"{trust.ca_file}: {exc}") from exc
        except (FetchFailed, ValueError) as exc:
            raise DestinationFailed(0, "4.7.5", f"{url}: {exc}") from exc
