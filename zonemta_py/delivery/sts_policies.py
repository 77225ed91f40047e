"""The MTA-STS policies of domains: looked up, fetched and cached, each once at a time.

A domain without a policy, or whose policy can be had neither from its server nor from the cache, is served as if
it asked for nothing (RFC 8461 section 5.1). The cache is of this process and ends with it (decision 127).
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.smtp.mx_order import Host, allowed
from zonemta_py.transports.connect import verifying_context

log = logging.getLogger(__name__)


# ---- A policy: the MX hosts that a domain names as its own, with certificates. Pure.
#
# Source: RFC 8461 sections 3.1 (the TXT record), 3.2 (the policy) and 4.1 (names of hosts).

POLICY_MAX_BYTES = 64 << 10
MX_MAX = 200  # patterns in a policy; the largest providers have fewer than ten
MAX_AGE_MAX_S = 31_557_600
MODES = ("enforce", "testing", "none")

_RECORD = re.compile(rb"v=STSv1[ \t]*(?:;|\Z)")
_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_NUMBER = re.compile(r"[0-9]{1,10}")
_HOST = re.compile(r"(?:\*\.)?[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*", re.IGNORECASE)


class StsPolicy(NamedTuple):
    """The policy of a domain. ``hosts``: names in lower case, or ``*.name`` for those one label below it."""

    mode: str
    hosts: tuple[str, ...]
    max_age_s: int

    @property
    def is_enforced(self) -> bool:
        """True if mail must not go to other hosts, nor without a verified certificate."""
        return self.mode == "enforce"

    def permits(self, host: str) -> bool:
        """True if ``host``, the name in an MX record, is one of the domain's."""
        name = host.lower().rstrip(".")
        return name in self.hosts or f"*.{name.partition('.')[2]}" in self.hosts


def policy_id(records: Iterable[bytes]) -> str | None:
    """The id of the policy by the TXT records at ``_mta-sts.DOMAIN``; None: the domain has no policy."""
    found = [record for record in records if _RECORD.match(record)]
    if len(found) != 1:
        return None
    for part in found[0].split(b";")[1:]:
        name, _, value = part.decode("ascii", "replace").strip(" \t").partition("=")
        if name == "id":
            return value if _ID.fullmatch(value) else None
    return None


def parse_policy(data: bytes) -> StsPolicy:
    """The policy in a file. Of a key that is there twice the first value counts. Raises ValueError that says what is wrong."""
    values: dict[str, str] = {}
    hosts: list[str] = []
    for line in data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"):
        key, colon, value = line.partition(":")
        key, value = key.strip(" \t"), value.strip(" \t")
        if colon and key == "mx":
            hosts.append(value.lower().rstrip("."))
        elif colon:
            values.setdefault(key, value)
    if values.get("version") != "STSv1":
        raise ValueError("version: expected STSv1")
    mode, max_age = values.get("mode", ""), values.get("max_age", "")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}")
    if not _NUMBER.fullmatch(max_age):
        raise ValueError("max_age: expected a number of seconds")
    if len(hosts) > MX_MAX:
        raise ValueError(f"mx: more than {MX_MAX}")
    if mode != "none" and not hosts:
        raise ValueError("mx: missing")
    if not all(len(host) <= 255 and _HOST.fullmatch(host) for host in hosts):
        raise ValueError("mx: expected names of hosts, or *.name")
    return StsPolicy(mode, tuple(hosts), min(int(max_age), MAX_AGE_MAX_S))


# ---- The policies of this process.

HTTPS_PORT = 443
FETCH_S = 10.0  # mail of the domain waits for it
FETCHES_MAX = 100  # at the same time
RETRY_S = 300.0  # after a fetch that failed (RFC 8461 section 3.3: no sooner)
CACHE_MAX = 50_000


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
