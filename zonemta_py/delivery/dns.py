"""From a domain to the hosts that accept its mail: questions by c-ares (``DnsChannel``), and their answers (``MxResolver``).

States of a domain: unknown ─▶ being looked up ─▶ cached ─▶ unknown, when its time is over. Of a channel: open ─▶ retired (full, or
a reload) ─▶ closed, when each question has its answer or its asker has gone.

Invariants:

- A domain is looked up once at a time; others that ask meanwhile wait for the same answer. A caller that is cancelled does not
  cancel it.
- An answer is cached for its TTL, between TTL_MIN_S and TTL_MAX_S; a final failure, such as a domain that does not exist, for
  NEGATIVE_TTL_S; any other, such as that of a name server, is temporary, and cached for FAILURE_TTL_S.
- Caches are bounded. After a reload answers of before are not used: a look-up that runs has the cache of domains that it began with.
- c-ares runs in the thread of the loop (decision 67); after ``close`` its callbacks do nothing.
- A domain whose hosts could be looked up in part has the others, without addresses and not ``is_whole``.

Callers: ``delivery.endpoints`` for hosts, ``sts_policies`` for TXT records; ``DnsChannel`` also ``relay.domain_verifier`` and
``cli.lint``. ``delivery.assembly`` makes the resolver, one for a process.

Example: ``await resolver.resolve("a.example")`` returns ``(Host(10, "mx.a.example", ("192.0.2.1",)),)``.

Source: RFC 5321 section 5.1, RFC 7505 (null MX), RFC 2308 (negative answers).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, NamedTuple

import pycares

from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.schema import Resolver
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.smtp.mx_order import Host
from zonemta_py.smtp.verdict import NO_ADDRESS

# ---- Questions to name servers, by c-ares: one UDP socket for each server, TCP for truncated answers.
#
# The only importer of pycares. All of it runs in the loop's thread (decision 67): the loop watches the sockets of
# c-ares, and after ``close`` its callbacks do nothing.

TYPES = {"A": 1, "AAAA": 28, "MX": 15, "TXT": 16}  # numbers of record types (RFC 1035, RFC 3596)
# The first try of c-ares ends after five times what the last answers took, between 0.25 s and this share of the time of
# the look-up; each further one takes twice as long: two lost datagrams do not fail a look-up.
TRIES = 5
FIRST_TRY = 1 / 7
RECEIVE_BUFFER_BYTES = 4 << 20  # thousands of answers while the loop is busy; the kernel may give less
# Then a channel is replaced: c-ares remembers every answer, 1.4 KB each, which ``MxResolver`` does itself. A new one does not
# know yet which server is dead (decision 123).
QUESTIONS_MAX = 10_000
TIMER_MAX_S = 1.0  # between two looks of c-ares at the age of its questions

Records = Sequence[Any]  # with ``ttl`` and ``data``: ``addr``, or ``priority`` and ``exchange``


class NameNotFound(Exception):
    """There is no such domain."""


class QueryFailed(Exception):
    """No answer, or none that can be used."""


class DnsChannel:
    """Questions to ``servers``, or to those of the system (None); needs a running loop."""

    def __init__(self, servers: Sequence[HostPort] | None, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = 0  # questions whose answer is waited for
        self._questions = 0  # so far
        self._is_closed = self._is_retired = False
        self._channel = pycares.Channel(
            servers=[_at(server) for server in servers] if servers is not None else None,
            timeout=timeout_s * FIRST_TRY,
            tries=TRIES,
            socket_receive_buffer_size=RECEIVE_BUFFER_BYTES,
            sock_state_cb=self._socket_changed,
        )

    @property
    def is_closed(self) -> bool:
        """True if it has ended."""
        return self._is_closed

    @property
    def is_full(self) -> bool:
        """True if another channel should take its place; ``retire`` it then."""
        return self._questions >= QUESTIONS_MAX

    async def query(self, name: str, rdtype: str) -> Records:
        """The records of type ``rdtype`` of ``name``, behind a CNAME too; none if there are none.

        Raises NameNotFound, QueryFailed.
        """
        future: asyncio.Future[Records] = self._loop.create_future()
        kind = TYPES[rdtype]
        self._asked += 1
        self._questions += 1
        try:
            self._channel.query(name, kind, callback=partial(self._answered, future, kind))
        except (pycares.AresError, ValueError) as exc:  # such as a name that cannot be asked for
            if not future.done():
                future.set_exception(QueryFailed(str(exc.args[-1])))
        self._set_timer()
        try:
            async with asyncio.timeout(self._timeout_s):  # c-ares asks each server for as long
                return await future
        except TimeoutError as exc:
            raise QueryFailed("Timeout while contacting DNS servers") from exc
        finally:
            self._asked -= 1
            if self._is_retired and not self._asked:
                self._loop.call_soon(self.close)  # not inside a callback of the channel

    def _answered(
        self, future: asyncio.Future[Records], kind: int, result: Any, error: int | None
    ) -> None:
        if self._is_closed:
            return
        if future.done():
            pass  # its look-up has ended
        elif error is None:
            future.set_result([record for record in result.answer if record.type == kind])
        elif error == pycares.errno.ARES_ENODATA:
            future.set_result(())
        elif error == pycares.errno.ARES_ENOTFOUND:
            future.set_exception(NameNotFound())
        else:
            future.set_exception(QueryFailed(pycares.errno.strerror(error)))

    # ---- sockets and time

    def _socket_changed(self, fd: int, readable: bool, writable: bool) -> None:
        if self._is_closed:
            return  # c-ares closes its sockets, in a thread of its own
        if readable:
            self._loop.add_reader(fd, self._process, fd, pycares.ARES_SOCKET_BAD)
            self._read.add(fd)
        elif fd in self._read:
            self._loop.remove_reader(fd)
            self._read.discard(fd)
        if writable:
            self._loop.add_writer(fd, self._process, pycares.ARES_SOCKET_BAD, fd)
            self._written.add(fd)
        elif fd in self._written:
            self._loop.remove_writer(fd)
            self._written.discard(fd)

    def _process(self, readable: int, writable: int) -> None:
        if not self._is_closed:
            self._channel.process_fd(readable, writable)
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._asked and not self._is_closed:
            timeout_s: float = self._channel.timeout()  # type: ignore[no-untyped-call]  # it has no annotations
            wait_s = min(timeout_s or TIMER_MAX_S, TIMER_MAX_S)
            self._timer = self._loop.call_later(wait_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        self._process(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)

    # ---- the end

    def retire(self) -> None:
        """No question follows: close when every question has its answer or its asker has gone."""
        self._is_retired = True
        if not self._asked:
            self.close()

    def close(self) -> None:
        """Close the sockets. Questions without an answer fail."""
        if self._is_closed:
            return
        self._channel.cancel()  # calls ``_answered`` for each
        self._is_closed = True
        for fd in self._read:
            self._loop.remove_reader(fd)
        for fd in self._written:
            self._loop.remove_writer(fd)
        if self._timer is not None:
            self._timer.cancel()
        self._channel.close()


def _at(server: HostPort) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{host}:{server.port}"


# ---- mx

TTL_MIN_S, TTL_MAX_S = 5.0, 3600.0
NEGATIVE_TTL_S = 300.0
FAILURE_TTL_S = 5.0
# Of one host among others: mail leaves meanwhile, and each look-up waits for that host.
HOST_FAILURE_TTL_S = 60.0
CACHE_MAX = 200_000
HOSTS_MAX = 10_000  # of which the addresses are cached, and sets of hosts: most domains share a few
MX_AT_ONCE = 20  # hosts looked up for one domain; more only if none of these has an address
MX_MAX = 100
ADDRESSES_MAX = 16  # kept for one host and family

Answer = tuple[Host, ...] | DestinationFailed


class HostAddresses(NamedTuple):
    """The addresses of a host; not ``is_whole``: the look-up of one family failed."""

    ips: tuple[str, ...]
    ttl_s: float
    is_whole: bool = True


class MxResolver:
    """Looks up domains, each once at a time, with a cache."""

    def __init__(self, settings: Resolver) -> None:
        self._cache: OrderedDict[str, tuple[float, Answer]]
        self._pending: dict[str, asyncio.Future[Answer]]
        self._channel: DnsChannel | None = None  # opened by the first question
        self._retired: list[DnsChannel] = []  # with questions that have no answer yet
        self.configure(settings)

    def configure(self, settings: Resolver) -> None:
        """Use new settings; answers from other servers are dropped. Look-ups that run have their answer."""
        self._settings = settings
        self._retire_channel()
        self._cache, self._pending = OrderedDict(), {}  # look-ups that run keep the old ones
        self._of_host: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._host_sets: dict[tuple[Host, ...], tuple[Host, ...]] = {}  # one object for equal ones

    def close(self) -> None:
        """End the look-ups that run; they fail."""
        self._retire_channel()
        for channel in self._retired:
            channel.close()
        self._retired.clear()

    def _retire_channel(self) -> None:
        if self._channel is not None:
            self._channel.retire()
            self._retired = [each for each in (*self._retired, self._channel) if not each.is_closed]
            self._channel = None

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
        ips = (await self._addresses(host)).ips
        if not ips:
            raise DestinationFailed(0, "4.4.4", f"{host} has no address")
        return (Host(0, host, ips),)

    async def texts(self, name: str) -> tuple[list[bytes], float]:
        """The TXT records of ``name``, if any, and how long they are used, in seconds. Raises DestinationFailed."""
        records = await self._query(name, "TXT", missing_domain_ok=True)
        ttl_s = _ttl_s(records) if records else NEGATIVE_TTL_S
        return [bytes(record.data.data) for record in records], min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)

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
        running = self._pending
        pending = running.get(domain)
        if pending is None:
            pending = asyncio.ensure_future(self._look_up(domain))
            running[domain] = pending
            pending.add_done_callback(lambda _: running.pop(domain, None))
        return await asyncio.shield(pending)

    async def _look_up(self, domain: str) -> Answer:
        answer: Answer
        cache = self._cache
        try:
            answer, ttl_s = await self._hosts(domain)
        except DestinationFailed as exc:
            answer, ttl_s = exc, NEGATIVE_TTL_S if exc.permanent else FAILURE_TTL_S
        expires = clock.monotonic_s() + min(max(ttl_s, TTL_MIN_S), TTL_MAX_S)
        cache[domain] = (expires, answer)
        if len(cache) > CACHE_MAX:
            cache.popitem(last=False)
        return answer

    async def _hosts(self, domain: str) -> tuple[tuple[Host, ...], float]:
        if domain.startswith("["):
            return (Host(0, domain, (_literal(domain),)),), TTL_MAX_S
        found, ttl_s = await self._mx(domain)
        if not found:
            own = await self._addresses(domain)
            if own.ips:
                return (Host(0, domain, own.ips, own.is_whole),), own.ttl_s
            # For c-ares a strange answer (a rare code, cut off over TCP too, a question) has no records: not final.
            raise DestinationFailed(0, NO_ADDRESS, f"{domain} has neither MX nor address")
        hosts: list[Host] = []
        failure: DestinationFailed | None = None
        for start in range(0, min(len(found), MX_MAX), MX_AT_ONCE):
            part = found[start : start + MX_AT_ONCE]
            answers = await asyncio.gather(
                *(self._addresses(name) for _, name in part), return_exceptions=True
            )
            for (preference, name), answer in zip(part, answers, strict=True):
                if isinstance(answer, DestinationFailed):
                    failure = answer
                    hosts.append(Host(preference, name, (), is_whole=False))
                    ttl_s = min(ttl_s, HOST_FAILURE_TTL_S)
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer.ips:
                    hosts.append(Host(preference, name, answer.ips, answer.is_whole))
                    ttl_s = min(ttl_s, answer.ttl_s)
            if any(host.ips for host in hosts):
                return self._shared_set(tuple(hosts)), ttl_s
        if failure is not None:
            raise failure
        raise DestinationFailed(0, NO_ADDRESS, f"no mail exchanger of {domain} has an address")

    def _shared_set(self, hosts: tuple[Host, ...]) -> tuple[Host, ...]:
        if len(self._host_sets) >= HOSTS_MAX:
            self._host_sets.clear()
        return self._host_sets.setdefault(hosts, hosts)

    async def _mx(self, domain: str) -> tuple[list[tuple[int, str]], float]:
        records = await self._query(domain, "MX")
        if not records:
            return [], TTL_MAX_S
        found = sorted((record.data.priority, record.data.exchange.lower()) for record in records)
        named = [(preference, name) for preference, name in found if name]
        if not named:
            raise DestinationFailed(556, "5.1.10", f"{domain} accepts no mail (null MX)", permanent=True)
        hosts = [(preference, name) for preference, name in named if not _is_address(name)]
        if not hosts:
            text = (
                f"the MX record of {domain} has an address ({named[0][1]}) in the place of a host's name"
            )
            raise DestinationFailed(550, "5.1.2", text, permanent=True)
        return hosts, _ttl_s(records)

    async def _addresses(self, name: str) -> HostAddresses:
        """IPv4 and IPv6 addresses of a host, CNAMEs followed; that it has none is cached, too.

        Raises DestinationFailed when a look-up fails and the other finds nothing.
        """
        now_s, cache = clock.monotonic_s(), self._of_host
        expires_s, known = cache.get(name, (0.0, ()))
        if now_s < expires_s:
            return HostAddresses(known, expires_s - now_s)
        results = await asyncio.gather(
            self._query(name, "A", missing_domain_ok=True),
            self._query(name, "AAAA", missing_domain_ok=True),
            return_exceptions=True,
        )
        ips: list[str] = []
        ttl_s = TTL_MAX_S
        for result in results:
            if not isinstance(result, BaseException):
                ips.extend(record.data.addr for record in result[:ADDRESSES_MAX])
                ttl_s = min(ttl_s, _ttl_s(result))
        for result in results:
            if not ips and isinstance(result, BaseException):
                raise result
        is_whole = not any(isinstance(result, BaseException) for result in results)
        if not ips:
            ttl_s = NEGATIVE_TTL_S
        if is_whole:
            if len(cache) >= HOSTS_MAX:
                cache.clear()
            cache[name] = (now_s + ttl_s, tuple(ips))
        if not is_whole:
            ttl_s = min(ttl_s, FAILURE_TTL_S)
        return HostAddresses(tuple(ips), ttl_s, is_whole)

    async def _query(self, name: str, rdtype: str, *, missing_domain_ok: bool = False) -> Records:
        """The records of this type; none if there are none. Raises DestinationFailed."""
        if self._channel is not None and self._channel.is_full:
            self._retire_channel()
        if self._channel is None:
            self._channel = DnsChannel(self._settings.nameservers, self._settings.timeout)
        try:
            return await self._channel.query(name, rdtype)
        except NameNotFound as exc:
            if missing_domain_ok:
                return ()
            raise DestinationFailed(
                550, "5.1.2", f"the domain {name} does not exist", permanent=True
            ) from exc
        except QueryFailed as exc:
            raise _failed(rdtype, name, str(exc)) from exc


def _failed(rdtype: str, name: str, text: str) -> DestinationFailed:
    return DestinationFailed(0, "4.4.3", f"looking up {rdtype} of {name} failed: {text}")


def _ttl_s(records: Records) -> float:
    return float(min((record.ttl for record in records), default=TTL_MAX_S))


def _is_address(name: str) -> bool:
    """True if an MX record names an address, which RFC 1035 section 3.3.9 does not permit."""
    if not name[-1:].isdigit() and name[-1:] not in ("]", ":"):
        return False
    try:
        ip_address(name.strip("[]").removeprefix("ipv6:"))
    except ValueError:
        return False
    return True


def _literal(domain: str) -> str:
    try:
        return str(ip_address(domain[1:-1].removeprefix("ipv6:")))
    except ValueError as exc:
        raise DestinationFailed(550, "5.1.2", f"{domain} is not an address", permanent=True) from exc
