"""Opens sessions for an SMTP agent: the first endpoint that takes one, within what the request permits.

State is kept by address, for a limited time; by it later connections skip hosts, change their order, or leave out extensions:

- ``Peers``: an extension that was *broken* at an address is not used there for BROKEN_S; the configuration may forbid one;
- ``SessionOpener._failed``: a host that opened no session; idle sessions with others are preferred for AVOIDED_S;
- ``SessionOpener.cut``: a host that gave no reply to a final dot; the others have their turn first;
- ``UnreachableHosts`` of ``schedule``: an address that timed out more than once is skipped.

Opportunistic TLS at an address: used ─ a handshake fails ─▶ used once more ─ it fails again ─▶ clear text. For BROKEN_S after that
clear text comes first, where only one connection is permitted, else TLS. A session with TLS leads back to the beginning.

Invariants:

- Only TLS that is opportunistic becomes clear text, and never in a session with a password.
- At most ``order.connects`` connections are made, unless that is negative; where they are limited no failed handshake is repeated.
- Before each connection, idle sessions are closed beyond the limits of the request.
- Tables have at most BROKEN_MAX or FAILED_MAX entries; a full one is emptied, and what it knew is learned again.

Callers: ``SmtpAgent``; the agents of all zones in a process share ``SmtpResources``, each has a ``SessionOpener`` of its own.

Example: the first MX host times out and the second one opens a session. When that is idle, mail of the next AVOIDED_S takes it,
and does not try the first host.

Source: RFC 5321 section 5.1, RFC 3207 (STARTTLS), RFC 7504 (a host that takes no mail).
"""

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from zonemta_py.config.schema import PeerSettings
from zonemta_py.config.zones import Zone
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery.attempts import all_unreachable
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.endpoints import Candidates, Endpoint, EndpointResolver, credentials
from zonemta_py.delivery.request import DeliveryRequest
from zonemta_py.delivery.session_pool import SessionPool, path_of
from zonemta_py.schedule.unreachable import AddressPair, UnreachableHosts, skip_times_s
from zonemta_py.smtp.address import domain_of
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.verdict import NO_MAIL_HERE, PARAMETERS
from zonemta_py.transports.connect import (
    LoopsBack,
    SessionOptions,
    SessionRefused,
    Target,
    TlsFailed,
    open_session,
)
from zonemta_py.transports.session import SmtpSession
from zonemta_py.transports.tracing import TRACER, SessionTrace

log = logging.getLogger(__name__)


# ---- Extensions that are not used with some peers: by the configuration, or because they were seen broken.

BROKEN_S = 3600.0  # how long an extension is not used with an address where it was broken
BROKEN_MAX = 10_000
FAILED = "handshake"  # what failed once counts under this name
USUAL = PeerSettings()

Address = tuple[str, int]  # IP address and port: behind one address there may be several servers


class Peers:
    """``settings`` by the name of a host, ``*.name`` for those below it, or an IP address. Times are monotonic."""

    def __init__(self, settings: Mapping[str, PeerSettings]) -> None:
        self._settings = settings
        self.withdraws = False  # some host has refused a parameter of an extension that it offers
        self._broken: dict[
            tuple[str, Address], float
        ] = {}  # by extension, or reply: until when it counts

    def settings(self, host: str, ip: str) -> PeerSettings:
        """The settings of a host in the configuration: by its address, its name, or the longest name above it."""
        if not self._settings:
            return USUAL
        names = [ip, host]
        rest = host
        while "." in rest:
            rest = rest.partition(".")[2]
            names.append(f"*.{rest}")
        return next((self._settings[name] for name in names if name in self._settings), USUAL)

    def may_pipeline(self, host: str, address: Address, now_s: float) -> bool:
        """True if PIPELINING is used with a host that offers it."""
        return (
            not self._is_broken("PIPELINING", address, now_s)
            and self.settings(host, address[0]).pipelining
        )

    def may_encrypt(self, host: str, address: Address, now_s: float, *, repeats: bool) -> bool:
        """True if STARTTLS is used with a host that offers it, where it is opportunistic.

        ``repeats``: where it fails another connection follows at once, so that it may be tried each time.
        """
        is_known = not repeats and self._is_broken("STARTTLS", address, now_s)
        return not is_known and self.settings(host, address[0]).starttls

    def parameters_broke(self, extensions: Collection[str], address: Address, now_s: float) -> None:
        """MAIL or RCPT was refused for the parameters of ``extensions``, which the host offers."""
        self.withdraws = True
        for each in extensions:
            self._broke(each, address, now_s)

    def withdrawn(self, address: Address, now_s: float) -> list[str]:
        """The extensions whose parameters are not used with a host, in lower case. Only asked when one ``withdraws``."""
        return [each for each in PARAMETERS if self._is_broken(each, address, now_s)]

    def pipelining_broke(self, address: Address, now_s: float) -> None:
        """A session was lost in the middle of pipelined commands."""
        self._broke("PIPELINING", address, now_s)

    def handshake_failed(self, address: Address, now_s: float) -> bool:
        """STARTTLS failed. Returns whether it is tried again before mail is sent in clear text: after the first time."""
        is_first = not any(self._is_broken(name, address, now_s) for name in (FAILED, "STARTTLS"))
        self._broke(FAILED if is_first else "STARTTLS", address, now_s)
        return is_first

    def refuses_session(
        self, address: Address, sender: str, reply: Reply, now_s: float, *, is_new: bool
    ) -> bool:
        """True if ``reply`` to MAIL says no more than that the session has had enough: a new one may take the message.

        Not if a new session (``is_new``) has had the same answer lately, for a ``sender`` of the same domain.
        """
        said = f"MAIL {domain_of(sender)} {reply.code} {reply.status}"
        if is_new:
            self._broke(said, address, now_s)
            return False
        return not self._is_broken(said, address, now_s)

    def encrypted(self, address: Address) -> None:
        """A session with TLS was opened: what failed before was an accident."""
        if self._broken:
            self._broken.pop((FAILED, address), None)
            self._broken.pop(("STARTTLS", address), None)

    def _is_broken(self, extension: str, address: Address, now_s: float) -> bool:
        return bool(self._broken) and self._broken.get((extension, address), 0.0) > now_s

    def _broke(self, extension: str, address: Address, now_s: float) -> None:
        if len(self._broken) >= BROKEN_MAX:
            self._broken.clear()
        self._broken[extension, address] = now_s + BROKEN_S


# ---- session opener

AVOIDED_S = 60.0  # how long idle sessions with other hosts are preferred to one that opened none
FAILED_MAX = 10_000
NEVER_S = float("-inf")
CONVERSIONS = 2  # to 7 bits at the same time


@dataclass(frozen=True, slots=True)
class SmtpResources:
    """The objects that the agents of all zones in a process share."""

    hostname: str
    endpoints: EndpointResolver
    peers: Peers
    signer: Signer
    unreachable: UnreachableHosts
    rng: Random
    conversions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONVERSIONS))


class NotPermitted(DestinationFailed):
    """A session is needed, and the order of the request permits no more connections. ``tried``: it has used those that it permits."""

    def __init__(self, *, tried: bool) -> None:
        super().__init__(0, "4.4.1", "no further session is permitted now")
        self.tried = tried


class AllSkipped(DestinationFailed):
    """No connection was made, because every address timed out lately."""

    def __init__(self, endpoints: Candidates) -> None:
        super().__init__(0, "4.4.1", all_unreachable(endpoints))


class TooSlow(DestinationFailed):
    """A host opened no session in the time that it has while mail of others waits."""


class SessionOpener:
    """Opens the sessions of one zone, and remembers which hosts opened none."""

    def __init__(self, resources: SmtpResources, pool: SessionPool) -> None:
        self._resources = resources
        self._pool = pool
        self._failed: dict[AddressPair, float] = {}  # when a host last opened no session
        self.cut: dict[AddressPair, float] = {}  # when a host last gave no reply to a final dot

    def failed_lately(self, endpoint: Endpoint) -> bool:
        """True if the host opened no session a while ago."""
        failed_s = self._failed.get(_addresses(endpoint), NEVER_S)
        return clock.monotonic_s() - failed_s < AVOIDED_S

    def gave_no_reply(self, endpoint: Endpoint) -> None:
        """A final dot had no reply: for AVOIDED_S the other hosts have their turn first, or this one gets each message, too."""
        if len(self.cut) >= FAILED_MAX:
            self.cut.clear()
        self.cut[_addresses(endpoint)] = clock.monotonic_s()

    def in_turn(self, endpoints: Candidates) -> Candidates:
        """``endpoints``, those that gave no reply lately last."""
        since_s = clock.monotonic_s() - AVOIDED_S
        self.cut = {pair: cut_s for pair, cut_s in self.cut.items() if cut_s > since_s}
        return sorted(endpoints, key=lambda each: _addresses(each[0]) in self.cut)

    async def open(
        self,
        endpoints: Candidates,
        request: DeliveryRequest,
        zone: Zone,
        failure: DestinationFailed | None = None,
        best: Endpoint | None = None,
    ) -> tuple[SmtpSession, Endpoint]:
        """Connect to the first endpoint that accepts a session. Raises DestinationFailed.

        ``failure``: of a host that is not among them. ``best``: the most preferred host of the domain, if that is not
        the first one. Addresses that timed out lately are skipped; not those of a smarthost, if there are no others.
        """
        resources, now_s = self._resources, clock.monotonic_s()
        reachable = self._reachable(endpoints, request, zone, now_s)
        order, connects = request.order, -1 if request.order is None else request.order.connects
        within_s, least_preferred = request.session_within_s, len(endpoints)
        for tried, (endpoint, source) in enumerate(reachable):
            if tried == connects:
                raise self._no_connects(reachable[tried:], failure, now_s)
            _check_time(within_s, now_s, failure)
            if (
                least_preferred < len(endpoints)
                and endpoints.index((endpoint, source)) > least_preferred
            ):
                continue
            self._pool.trim(request.destination, *request.idle_limits)
            if order is not None:
                await self._pool.together.trim(path_of(order), order.sessions_max)
            ehlo = source.ehlo or resources.hostname
            trace = session_trace(request, endpoint) if TRACER.is_active else None
            try:
                opening = self._open(endpoint, ehlo, zone, trace, repeats=connects < 0)
                session = await (_within(within_s, opening, endpoint) if within_s else opening)
            except NotPermitted:
                raise
            except LoopsBack as exc:
                # Neither this host nor a less preferred one may be used (RFC 5321 section 5.1).
                if endpoint is (best or endpoints[0][0]):
                    raise
                least_preferred = endpoints.index((endpoint, source))
                failure = failure or DestinationFailed(0, "4.4.1", exc.text)
                self._failed_to_open(endpoint, request, zone, exc)
            except DestinationFailed as exc:
                if failure is None or not _takes_no_mail(exc):
                    failure = exc  # that of a host which may take mail later counts more
                self._failed_to_open(endpoint, request, zone, exc)
                if trace is not None:
                    trace.note(exc.text)
            else:
                resources.unreachable.answered(_addresses(endpoint))
                return session, endpoint
        raise self._none_opened(endpoints, reachable, failure)

    def _reachable(
        self, endpoints: Candidates, request: DeliveryRequest, zone: Zone, now_s: float
    ) -> Candidates:
        """The endpoints that may be tried, in the order of the attempts."""
        unreachable = self._resources.unreachable
        if request.turn:
            endpoints = beginning_with(endpoints, request.turn)
        reachable = [e for e in endpoints if not unreachable.skipped_s(_addresses(e[0]), now_s)]
        if not reachable and zone.smarthost:
            reachable = list(endpoints)
        if request.session_within_s or (request.order is not None and request.order.connects >= 0):
            # A host that has just failed must not use up what is permitted.
            reachable.sort(
                key=lambda pair: now_s - self._failed.get(_addresses(pair[0]), NEVER_S) < AVOIDED_S
            )
        return self.in_turn(reachable) if self.cut else reachable

    def _none_opened(
        self, endpoints: Candidates, reachable: Candidates, failure: DestinationFailed | None
    ) -> DestinationFailed:
        if failure is not None and _takes_no_mail(failure) and len(reachable) < len(endpoints):
            skipped = [pair for pair in endpoints if pair not in reachable]
            return DestinationFailed(0, "4.4.1", all_unreachable(skipped))
        return failure or AllSkipped(endpoints)

    def _no_connects(
        self, left: Candidates, failure: DestinationFailed | None, now_s: float
    ) -> DestinationFailed:
        """Why no session was opened: every host was tried lately, or none of ``left`` may be tried now."""
        tried = (
            now_s - self._failed.get(_addresses(endpoint), NEVER_S) < AVOIDED_S for endpoint, _ in left
        )
        if failure is not None and all(tried):
            return _temporary(failure)
        return NotPermitted(tried=failure is not None)

    def _failed_to_open(
        self, endpoint: Endpoint, request: DeliveryRequest, zone: Zone, failure: DestinationFailed
    ) -> None:
        """Prefer other hosts for a while; skip the address if it timed out, and not for the first time."""
        resources, now_s, pair = self._resources, clock.monotonic_s(), _addresses(endpoint)
        if len(self._failed) >= FAILED_MAX:
            self._failed.clear()
        self._failed[pair] = now_s
        if failure.timed_out:
            times_s, spread = skip_times_s(zone.retry), resources.rng.random()
            resources.unreachable.timed_out(pair, request.destination, now_s, times_s, spread)
        elif not isinstance(failure, TooSlow):
            resources.unreachable.answered(pair)

    async def _open(
        self, endpoint: Endpoint, ehlo: str, zone: Zone, trace: SessionTrace | None, *, repeats: bool
    ) -> SmtpSession:
        """A session; ``repeats``: with further connections where STARTTLS fails. Raises DestinationFailed, NotPermitted.

        Opportunistic TLS becomes clear text after two failures only, and never with a password.
        """
        peers, now_s, at = self._resources.peers, clock.monotonic_s(), (endpoint.ip, endpoint.port)
        login, tls = credentials(zone), endpoint.tls
        may_be_clear = tls == "opportunistic" and login is None
        if may_be_clear and not (
            endpoint.port and peers.may_encrypt(endpoint.host, at, now_s, repeats=repeats)
        ):
            tls = "off"
        lost_tls = tls == "off" and peers.settings(endpoint.host, endpoint.ip).starttls
        options = SessionOptions(
            ehlo=ehlo,
            source=endpoint.source,
            tls=tls,
            timeouts=zone.timeouts,
            credentials=login,
            lmtp=zone.transport == "lmtp",
            ca_file=zone.tls_ca_file,
            detects_loop=not zone.smarthost,
            pipelining=peers.may_pipeline(endpoint.host, at, now_s),
        )
        target = Target(endpoint.host, endpoint.ip, endpoint.port)
        while True:
            try:
                session = await open_session(target, options, trace=trace)
            except TlsFailed as exc:
                if not may_be_clear:
                    raise
                again = peers.handshake_failed(at, clock.monotonic_s())
                log.info("%s; the next connection is %s TLS", exc.text, "with" if again else "without")
                if not repeats:
                    raise NotPermitted(tried=True) from exc
                if not again:
                    options, lost_tls = dataclasses.replace(options, tls="off"), True
            else:
                if session.secure:
                    peers.encrypted(at)
                session.lost_tls = lost_tls and may_be_clear
                if peers.withdraws:
                    session.withdraw(peers.withdrawn(at, now_s))
                return session


def beginning_with(endpoints: Candidates, turn: int) -> Candidates:
    """``endpoints``, those of the host number ``turn`` first; the hosts are counted round."""
    hosts = list(dict.fromkeys(endpoint.host for endpoint, _ in endpoints))
    first = hosts[turn % len(hosts)]
    return sorted(endpoints, key=lambda each: each[0].host != first)


def _takes_no_mail(failure: DestinationFailed) -> bool:
    """True if a host said that it takes no mail, ever: final for the mail if all hosts say so (RFC 7504 section 4)."""
    return isinstance(failure, SessionRefused) and failure.reply.code == NO_MAIL_HERE


def _check_time(within_s: float, since_s: float, failure: DestinationFailed | None) -> None:
    """Raises ``failure`` when hosts have been tried since ``since_s`` for twice the time that each has."""
    if within_s and failure is not None and clock.monotonic_s() - since_s >= 2 * within_s:
        raise _temporary(failure)


def _temporary(failure: DestinationFailed) -> DestinationFailed:
    """``failure`` of some of the hosts of a domain: that one takes no mail says nothing of the others."""
    return DestinationFailed(0, "4.4.1", failure.text) if _takes_no_mail(failure) else failure


async def _within(
    within_s: float, opening: Coroutine[Any, Any, SmtpSession], endpoint: Endpoint
) -> SmtpSession:
    """The session, within ``within_s``. Raises what ``opening`` raises, TooSlow."""
    try:
        async with asyncio.timeout(within_s):
            return await opening
    except TimeoutError as exc:
        where = f"{endpoint.host}[{endpoint.ip}]"
        text = f"{where}: no session within {within_s:.1f} s, while mail of others waits"
        raise TooSlow(0, "4.4.1", text) from exc


def session_trace(
    request: DeliveryRequest, endpoint: Endpoint, before: SessionTrace | None = None
) -> SessionTrace | None:
    """The trace of a request on a session with ``endpoint``, if it is traced."""
    names = (request.destination, request.domain, endpoint.ip, endpoint.source or "")
    peer = f"{endpoint.host}[{endpoint.ip}]:{endpoint.port}"
    return TRACER.outgoing(peer, names, request.message, before)


def _addresses(endpoint: Endpoint) -> AddressPair:
    return AddressPair(endpoint.source or "", endpoint.ip, endpoint.port)
