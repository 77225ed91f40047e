"""From a domain to the hosts that accept its mail. The only importer of dnspython besides the test sink.

Answers are cached for their TTL, within bounds; "no such domain" for NEGATIVE_TTL_S. A name server that
does not answer is a temporary failure, cached for FAILURE_TTL_S.

Source: RFC 5321 section 5.1, RFC 7505 (null MX), RFC 2308 (negative answers).
"""

import asyncio
from collections import OrderedDict
from ipaddress import ip_address
from itertools import islice

import dns.asyncresolver
import dns.exception
import dns.flags
import dns.name
import dns.nameserver
import dns.rdatatype
import dns.resolver

from zonemta_py.config.schema import Resolver
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.smtp.classify import NO_ADDRESS
from zonemta_py.smtp.mx_order import Host

TTL_MIN_S, TTL_MAX_S = 5.0, 3600.0
NEGATIVE_TTL_S = 300.0
FAILURE_TTL_S = 5.0
CACHE_MAX = 50_000
MX_MAX = 20  # hosts looked up for one domain
ADDRESSES_MAX = 16  # kept for one host and family

Answer = tuple[Host, ...] | DestinationFailed


class MxResolver:
    """Looks up domains, each once at a time, with a cache."""

    def __init__(self, settings: Resolver) -> None:
        self._cache: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self.configure(settings)

    def configure(self, settings: Resolver) -> None:
        """Use new settings; answers from other servers are dropped."""
        self._resolver = dns.asyncresolver.Resolver(configure=settings.nameservers is None)
        if settings.nameservers is not None:
            self._resolver.nameservers = [
                dns.nameserver.Do53Nameserver(server.host, server.port)
                for server in settings.nameservers
            ]
        self._resolver.lifetime = settings.timeout
        self._resolver.timeout = settings.timeout / 2
        self._cache.clear()

    async def resolve(self, domain: str) -> tuple[Host, ...]:
        """The hosts of ``domain``, at least one. Raises DestinationFailed."""
        answer = self._cached(domain)
        if answer is None:
            answer = await self._shared(domain)
        if isinstance(answer, DestinationFailed):
            raise DestinationFailed(answer.code, answer.status, answer.text, permanent=answer.permanent)
        return answer

    async def addresses_of(self, host: str) -> tuple[Host, ...]:
        """A host by its addresses, without MX. Raises DestinationFailed."""
        ips, _ = await self._addresses(host)
        if not ips:
            raise DestinationFailed(0, "4.4.4", f"{host} has no address")
        return (Host(0, host, ips),)

    def _cached(self, domain: str) -> Answer | None:
        entry = self._cache.get(domain)
        if entry is None:
            return None
        if entry[0] < clock.monotonic_s():
            del self._cache[domain]
            return None
        return entry[1]

    async def _shared(self, domain: str) -> Answer:
        """Join a running look-up or start one; it continues when a caller is cancelled."""
        pending = self._pending.get(domain)
        if pending is None:
            pending = asyncio.ensure_future(self._look_up(domain))
            self._pending[domain] = pending
            pending.add_done_callback(lambda _: self._pending.pop(domain, None))
        return await asyncio.shield(pending)

    async def _look_up(self, domain: str) -> Answer:
        answer: Answer
        try:
            answer, ttl_s = await self._hosts(domain)
        except DestinationFailed as exc:
            answer, ttl_s = exc, NEGATIVE_TTL_S if exc.permanent else FAILURE_TTL_S
        expires = clock.monotonic_s() + min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)
        self._cache[domain] = (expires, answer)
        if len(self._cache) > CACHE_MAX:
            self._cache.popitem(last=False)
        return answer

    async def _hosts(self, domain: str) -> tuple[tuple[Host, ...], float]:
        if domain.startswith("["):
            return (Host(0, domain, (_literal(domain),)),), TTL_MAX_S
        found, ttl_s = await self._mx(domain)
        if not found:
            ips, address_ttl_s = await self._addresses(domain)
            if ips:
                return (Host(0, domain, ips),), address_ttl_s
            raise DestinationFailed(550, "5.4.4", f"{domain} has neither MX nor address", permanent=True)
        hosts = []
        failure: DestinationFailed | None = None
        answers = await asyncio.gather(
            *(self._addresses(name) for _, name in found[:MX_MAX]), return_exceptions=True
        )
        for (preference, name), answer in zip(found, answers, strict=False):
            if isinstance(answer, DestinationFailed):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            elif answer[0]:
                hosts.append(Host(preference, name, answer[0]))
                ttl_s = min(ttl_s, answer[1])
        if hosts:
            return tuple(hosts), ttl_s
        if failure is not None:
            raise failure
        raise DestinationFailed(0, NO_ADDRESS, f"no mail exchanger of {domain} has an address")

    async def _mx(self, domain: str) -> tuple[list[tuple[int, str]], float]:
        answer = await self._query(domain, "MX")
        if answer is None:
            return [], TTL_MAX_S
        records = sorted((record.preference, record.exchange) for record in answer)
        if len(records) == 1 and records[0][1] == dns.name.root:
            raise DestinationFailed(556, "5.1.10", f"{domain} accepts no mail (null MX)", permanent=True)
        names = [(preference, _text(name)) for preference, name in records if name != dns.name.root]
        return names, float(answer.rrset.ttl if answer.rrset is not None else TTL_MIN_S)

    async def _addresses(self, name: str) -> tuple[tuple[str, ...], float]:
        """IPv4 and IPv6 addresses of a host, CNAMEs followed.

        Raises DestinationFailed when a look-up fails and the other finds nothing.
        """
        results = await asyncio.gather(
            self._query(name, "A", missing_domain_ok=True),
            self._query(name, "AAAA", missing_domain_ok=True),
            return_exceptions=True,
        )
        ips: list[str] = []
        ttl_s = TTL_MAX_S
        for result in results:
            if isinstance(result, BaseException):
                continue
            if result is not None:
                ips.extend(record.address for record in islice(result, ADDRESSES_MAX))
                ttl_s = min(ttl_s, float(result.rrset.ttl if result.rrset is not None else TTL_MIN_S))
        for result in results:
            if not ips and isinstance(result, BaseException):
                raise result
        return tuple(ips), ttl_s

    async def _query(
        self, name: str, rdtype: str, *, missing_domain_ok: bool = False
    ) -> dns.resolver.Answer | None:
        """The answer, or None when there is no record of this type. Raises DestinationFailed."""
        try:
            return await self._resolver.resolve(f"{name}.", rdtype, search=False)
        except dns.resolver.NoAnswer as exc:
            if exc.kwargs["response"].flags & dns.flags.TC:
                raise DestinationFailed(
                    0, "4.4.3", f"the answer for {rdtype} of {name} is truncated"
                ) from exc
            return None
        except dns.resolver.NXDOMAIN as exc:
            if missing_domain_ok:
                return None
            raise DestinationFailed(
                550, "5.1.2", f"the domain {name} does not exist", permanent=True
            ) from exc
        except dns.exception.DNSException as exc:
            text = " ".join(str(exc).split())[:200]
            raise DestinationFailed(0, "4.4.3", f"looking up {rdtype} of {name} failed: {text}") from exc


def _text(name: dns.name.Name) -> str:
    return name.to_text(omit_final_dot=True).lower()


def _literal(domain: str) -> str:
    try:
        return str(ip_address(domain[1:-1].removeprefix("ipv6:")))
    except ValueError as exc:
        raise DestinationFailed(550, "5.1.2", f"{domain} is not an address", permanent=True) from exc
