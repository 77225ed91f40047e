"""The state that the sessions of one listener share: settings, users, queue, places, refusals, turns.

``ListenerContext`` is what a session sees, and the first class to read; it has the present settings and three helpers:

- ``SessionLimits``: the places of the listener. A session is *unnamed* (of a proxy that has not named its client, without a
  place), a *stranger*, or *known* (trusted or authenticated)::

      unnamed ─▶ stranger ─▶ known ─▶ ended       each may end, or lose its place

- ``Rejections``: refused commands, of which at most two events in a minute are recorded for each client, command and code.
- ``IntakeTurns``: a budget of computing time for each turn of the event loop, so that intake does not delay deliveries.

Invariants:

- A session is in at most one of the three tables; ``_owned`` and ``_by_network`` count the entries of two of them.
- Known sessions and strangers together are at most ``max_sessions``; after a reload with a lower number none is ended for it.
- Every decision is a plain function: no other session runs between the question for a place and its answer.
- ``apply`` replaces all settings at once, so that a command sees one configuration.

Callers: ``Listener`` makes a context and applies reloads; ``Connection`` calls ``admit``, ``claim``, ``authenticated`` and
``ended``; ``Session`` uses the settings, the queue and the rejections.

Example: with 8 places strangers have at most 7, and 2 from one network. A known client that finds all 8 taken gets the place of
a stranger, of the network that has most; that session ends with 421.

Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998; Postfix, STRESS_README.
"""

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from zonemta_py.config.endpoints import Network
from zonemta_py.config.hooks import Hooks
from zonemta_py.config.schema import Config, ListenerSettings
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import ConfigError, NotAccepted
from zonemta_py.core.networks import network_of
from zonemta_py.events.schema import Event, Rejected
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.intake.stamping import MessageRules, make_rules
from zonemta_py.intake.users import PasswordChecks, Users, load_users
from zonemta_py.queue.submitters.limits import LimitedClient, SessionClaim
from zonemta_py.queue.suspensions import suspended_part
from zonemta_py.routing import Router, matching_networks
from zonemta_py.storage.open import DiskSpace

# ---- Places: the clients that may relay, and their number of sessions. Pure: the time is an argument.
#
# A listener has a number of places. A session is *known* when its client is trusted or has authenticated; it has owners,
# the tenant and then the user, or without AUTH the address. All others are *strangers*, who hold a place only as long as
# no one else needs it:
#
# - A known client gets the place of a stranger when none is free.
# - A stranger gets the place of one whose network has at least two more, or who is there for STRESS_S, as Postfix gives
#   clients ten seconds when its processes are all in use (smtpd_timeout under stress). A network in which a user logged in
#   recently comes before others.
# - An owner may have SHARE times the places that are left, so that one alone leaves an eighth, and k of them an equal
#   share each and one to k + 1 (the dynamic thresholds of Choudhury and Hahne, "Dynamic queue length thresholds for
#   shared-memory packet switches", 1998). When nothing is left, a client whose owner has less gets the place of an idle
#   session of the owner who has most.
#
# A connection of a proxy has no place before its PROXY header names the client: it belongs to the proxy, and neither a
# silent one nor that of a stranger takes anything from a client.

NO_SPACE = "452 4.3.1 Not enough disk space, try again later"
TOO_MANY = "421 4.3.2 Too many sessions, try again later"
TOO_MANY_OF_ADDRESS = "421 4.7.0 Too many sessions from your address"
TOO_MANY_OF_OWNER = "421 4.7.0 Too many sessions of"
STRESS_S = 10.0
SHARES = (7, 3)  # of the first owner, and of a user or address within a tenant

K = TypeVar("K")

Owners = tuple[tuple[str, str], ...]  # kind and name; the tenant, if there is one, first


class OpenSession(Protocol):
    """A session, as its listener knows it."""

    @property
    def busy(self) -> bool:
        """True if a transaction is open."""

    def close_if_idle(self) -> None:
        """End it, unless a transaction is open."""

    def give_up(self) -> None:
        """End it: another client needs its place."""

    def abort(self) -> None:
        """Close its connection."""


class Stranger(NamedTuple):
    """A client that is not known, and the start of its session; ``is_familiar``: a user logged in from its network recently."""

    network: str
    is_familiar: bool
    since_s: float


def is_trusted(client_ip: str, networks: Sequence[Network]) -> bool:
    """True if ``client_ip`` is in one of ``networks``; an empty address is not."""
    return bool(client_ip) and matching_networks(client_ip.removeprefix("::ffff:"), networks)


class SessionLimits:
    """The sessions of a listener, and who has its places. ``end`` ends one that loses its place.

    Strangers have no more than a quarter of the places from one network and leave an eighth to the others.
    """

    def __init__(self, end: Callable[[OpenSession], None]) -> None:
        self._end = end
        self._known: dict[OpenSession, Owners] = {}  # the oldest first
        self._strangers: dict[OpenSession, Stranger] = {}  # the oldest first
        self._owned: dict[tuple[str, str], int] = {}
        self._by_network: dict[str, int] = {}  # of strangers
        self._unnamed: dict[OpenSession, None] = {}  # of proxies, without a place; the oldest first

    @property
    def sessions(self) -> Collection[OpenSession]:
        """All that are open: those that have a place, and those of proxies that have named no client yet."""
        return [*self._known, *self._strangers, *self._unnamed]

    def __len__(self) -> int:
        return len(self._known) + len(self._strangers)

    def __contains__(self, session: OpenSession) -> bool:
        return session in self._known or session in self._strangers

    def admit_known(self, session: OpenSession, owners: Owners, places: int) -> str:
        """Give a place to a client that is known, once; returns why it gets none, as a reply, or an empty text."""
        if session in self:
            return ""
        refusal = self._excess(owners, places)
        if refusal:
            return refusal
        if len(self._known) + len(self._strangers) >= places:
            victim = self._first_stranger() or self._idle_of_most(owners)
            if victim is None:
                return TOO_MANY
            self._take_from(victim)
        self._known[session] = owners
        owned = self._owned
        for owner in owners:
            owned[owner] = owned.get(owner, 0) + 1
        return ""

    def admit_stranger(self, session: OpenSession, client: Stranger, places: int) -> str:
        """Give a place to a client that is not known; the result is that of ``admit_known``."""
        if session in self._strangers or session in self._known:
            return ""
        count = self._by_network.get(client.network, 0)
        if count >= max(1, places // 4):
            return TOO_MANY_OF_ADDRESS
        for_strangers = max(1, places - places // 8)
        if len(self) >= places or len(self._strangers) >= for_strangers:
            victim = self._weaker_than(client, count)
            if victim is None:
                return TOO_MANY
            self._take_from(victim)
        self._strangers[session] = client
        self._by_network[client.network] = self._by_network.get(client.network, 0) + 1
        return ""

    def admit_unnamed(self, session: OpenSession, places: int) -> None:
        """Keep a connection of a proxy until its client is known; of more than ``places`` the oldest ends."""
        if len(self._unnamed) >= places:
            self._take_from(next(iter(self._unnamed)))
        self._unnamed[session] = None

    def know(self, session: OpenSession, owners: Owners, places: int) -> str:
        """Note that the client of ``session`` has authenticated; returns why it may not stay, as a reply, or an empty text."""
        refusal = self._excess(owners, places)
        if session in self and not refusal:
            self.remove(session)
            return self.admit_known(session, owners, places)
        return refusal

    def remove(self, session: OpenSession) -> None:
        """Free the place of a session that has ended, if it has one."""
        owners = self._known.pop(session, None)
        if owners is not None:
            for owner in owners:
                _decrement(self._owned, owner)
            return
        stranger = self._strangers.pop(session, None)
        if stranger is not None:
            _decrement(self._by_network, stranger.network)
            return
        self._unnamed.pop(session, None)

    def _excess(self, owners: Owners, places: int) -> str:
        """The refusal of a further session of an owner, as a reply; empty if it may have one."""
        free = places - len(self._known)
        for owner, share in zip(owners, SHARES, strict=False):
            count = self._owned.get(owner, 0)
            if free > 0 and count and count >= share * free:
                kind, name = owner
                return f"{TOO_MANY_OF_OWNER} {kind} {name}, try again later"
        return ""

    def _take_from(self, session: OpenSession) -> None:
        self.remove(session)
        self._end(session)

    def _first_stranger(self) -> OpenSession | None:
        """The oldest of the network that has most, familiar ones last; None without strangers."""
        ranks = {each: self._rank(client) for each, client in self._strangers.items()}
        return max(ranks, key=lambda each: ranks[each], default=None)

    def _weaker_than(self, client: Stranger, count: int) -> OpenSession | None:
        """The session whose place a stranger of a network with ``count`` gets: as ``_first_stranger``, of those that it may take."""
        ranks = {
            each: self._rank(other)
            for each, other in self._strangers.items()
            if (client.is_familiar and not other.is_familiar)
            or (
                client.is_familiar == other.is_familiar
                and (
                    self._by_network[other.network] > count + 1
                    or client.since_s - other.since_s >= STRESS_S
                )
            )
        }
        return max(ranks, key=lambda each: ranks[each], default=None)

    def _rank(self, client: Stranger) -> tuple[bool, int]:
        return not client.is_familiar, self._by_network[client.network]

    def _idle_of_most(self, owners: Owners) -> OpenSession | None:
        """The oldest idle session of the owner with most, if that is at least two more than ``owners`` have."""
        own = max((self._owned.get(owner, 0) for owner in owners[:1]), default=0)
        found, most = None, own + 1
        for session, others in self._known.items():
            count = max((self._owned[owner] for owner in others[:1]), default=0)
            if count > most and not session.busy:
                found, most = session, count
        return found


def _decrement(counts: dict[K, int], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


# ---- Refusals: the first of a client, command and code is recorded at once, the number of the others at the end of the minute, so
# that no client can fill the event log.

INTERVAL_S = 60.0
KINDS_MAX = 1000  # of strangers, and of others, counted by themselves; the others of a minute are counted together


class _Kind(NamedTuple):
    """A kind of refusal that is counted by itself. ``owner``: a user, or the network of a client; empty: of all beyond KINDS_MAX."""

    is_known: bool
    owner: str
    command: str
    code: int


class Rejections:
    """The refusals of one listener. ``record`` writes an event.

    With less than ``disk_space`` nothing is written: refusals are only counted until there is more.
    """

    def __init__(self, record: Callable[[Event], object], disk_space: DiskSpace) -> None:
        self._record = record
        self._disk_space = disk_space
        # The last one, with the count of those not recorded; None: there was one, and it was.
        self._counted: dict[_Kind, Rejected | None] = {}
        self._kinds: Counter[bool] = (
            Counter()
        )  # of known clients and of strangers: neither takes the other's
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: Rejected, *, user: str, is_known: bool) -> None:
        """Record ``event``, or count it with the others of its minute.

        ``user``: the authenticated one, if any. ``is_known``: the client may relay.
        """
        kind = _Kind(is_known, user or network_of(event.client_ip), event.command, event.code)
        if kind not in self._counted and self._kinds[is_known] >= KINDS_MAX:
            kind = kind._replace(owner="")
        if kind not in self._counted:
            self._kinds[is_known] += 1
        if kind in self._counted or not self._disk_space.is_sufficient():
            before = self._counted.get(kind)
            self._counted[kind] = replace(event, count=1 + (before.count if before else 0))
        else:
            self._counted[kind] = None
            self._record(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._end_minute)

    def add_password(self, event: Rejected) -> None:
        """Record a wrong password: their number is limited, and each has its name in the event log."""
        self._record(event)

    def _end_minute(self) -> None:
        self._timer = None
        self.flush()
        if self._counted:  # the disk is full
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._end_minute)

    def flush(self) -> None:
        """Record what was counted, if the disk has space."""
        if not self._disk_space.is_sufficient():
            return
        counted, self._counted = self._counted, {}
        self._kinds.clear()
        for kind, event in counted.items():
            if event is not None:
                self._record(event if kind.owner else replace(event, client_ip="", user="", tenant=""))

    def close(self) -> None:
        """Record what was counted, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()


# ---- Turns: the computing time of sessions in one turn of the event loop (decision 119).
#
# A loop that serves all that has come computes for many milliseconds while clients submit, and mail that could leave
# waits for each of these turns. Beyond a budget sessions wait for the next turn, in the order in which they came.
# Deliveries, writes and timers are served in between. What follows a commit or a check of a password is outside the budget.

BUDGET_S = 0.0005  # a few commands, or a message; at least one step of one session


class IntakeTurns:
    """The sessions of one process that wait for a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, budget_s: float = BUDGET_S) -> None:
        self._loop = loop
        self._budget_s = budget_s
        self._end_s = 0.0  # of the budget of this turn; 0: no session has done anything yet
        self._waiting: deque[Callable[[], None]] = deque()

    def is_over(self) -> bool:
        """True if a session must ``wait`` before its next step."""
        if self._end_s:
            return monotonic_s() >= self._end_s
        self._begin()
        return False

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` in one of the next turns, for a step that asks no more, however long it is since the last check."""
        self._waiting.append(go_on)

    def _begin(self) -> None:
        self._end_s = monotonic_s() + self._budget_s
        self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._end_s = 0.0
        waiting = self._waiting
        if not waiting:
            return
        self._begin()
        waiting.popleft()()
        while waiting and monotonic_s() < self._end_s:
            waiting.popleft()()


# ---- The context.

TRUSTED_MAX = 10_000  # addresses that are remembered


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """A listener's configuration, with the files and functions that it names loaded."""

    listener: ListenerSettings
    users: Users | None
    tls_context: ssl.SSLContext | None
    rules: MessageRules


def load_settings(
    listener: ListenerSettings, hostname: str, config: Config, router: Router, hooks: Hooks
) -> SessionSettings:
    """Load what ``listener`` names. Raises ConfigError."""
    users = load_users(listener.auth.users_file) if listener.auth.users_file else None
    policies = hooks.envelope_policies(config)
    rules = make_rules(config, listener, hostname, router, policies)
    return SessionSettings(listener, users, make_tls_context(listener), rules)


class ListenerContext:
    """One listening address as its sessions see it. ``apply`` changes it while they run."""

    def __init__(
        self,
        settings: SessionSettings,
        queue: QueueClient,
        disk_space: DiskSpace,
        passwords: PasswordChecks,
        turns: IntakeTurns,
        scanner: MessageScanner | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()  # cached: the call takes a getpid() before Python 3.12
        self.queue = queue
        self.turns = turns
        self.disk_space = disk_space
        self.passwords = passwords
        self.scanner = scanner
        self.stopping = False
        self.rejections = Rejections(queue.record, disk_space)
        # Those that begin with TLS and are not sessions yet, though they have a place.
        self.handshakes: dict[OpenSession, asyncio.Task[None]] = {}
        self._limits = SessionLimits(self._give_up)
        self.apply(settings)

    def apply(self, settings: SessionSettings) -> None:
        """Use ``settings``: at the start, and after a reload."""
        self.settings = settings.listener
        self.name = str(settings.listener.address)
        self.users = settings.users
        self.rules = settings.rules
        self.hostname = settings.rules.hostname
        tenants = settings.rules.senders.tenants
        self._tenants = tenants if tenants else None
        self._trusted: dict[str, Owners] = {}  # by address; found before, of none that is a proxy
        self._trusts: dict[str, bool] = {}  # by address; each MAIL asks
        mode = self.settings.tls.mode
        self.starttls_context = settings.tls_context if mode == "starttls" else None
        self.implicit_context = settings.tls_context if mode == "implicit" else None

    @property
    def sessions(self) -> Collection[OpenSession]:
        return self._limits.sessions

    def admit(self, session: OpenSession, client_ip: str, *, is_named: bool = False) -> str:
        """Count a session, once; returns why it is refused, as a reply, or an empty text.

        ``is_named``: a proxy has said whose it is; before that it has no place.
        """
        if self.stopping:
            return TOO_MANY
        limits, places = self._limits, self.settings.max_sessions
        owners = self._trusted.get(client_ip)
        if owners is None:
            is_proxy = self.is_proxy(client_ip)
            if is_proxy and not is_named:
                limits.admit_unnamed(session, places)
                return ""
            if self.trusts(client_ip):
                owners = self._owners("", client_ip)
                if not is_proxy:
                    self._keep_trusted(client_ip, owners)
        if owners is not None:
            return limits.admit_known(session, owners, places)
        network = network_of(client_ip)
        is_familiar = self.queue.recent_logins.is_familiar(network)
        return limits.admit_stranger(session, Stranger(network, is_familiar, monotonic_s()), places)

    def _keep_trusted(self, client_ip: str, owners: Owners) -> None:
        if len(self._trusted) >= TRUSTED_MAX:
            self._trusted.clear()
        self._trusted[client_ip] = owners

    def authenticated(self, session: OpenSession, user: str, client_ip: str) -> str:
        """Note that the client of ``session`` is ``user``; returns why it may not stay, as a reply, or an empty text."""
        return self._limits.know(session, self._owners(user, client_ip), self.settings.max_sessions)

    def _owners(self, user: str, client_ip: str) -> Owners:
        member = ("user", user) if user else ("address", network_of(client_ip))
        if self._tenants is None or (tenant := self._tenants.of(user, client_ip)) is None:
            return (member,)
        return ("tenant", tenant.name), member

    def claim(self, user: str, client_ip: str) -> SessionClaim:
        """Count a session of a known client among those that may be open at the same time."""
        tenant = self._tenants.of(user, client_ip) if self._tenants is not None else None
        name = tenant.name if tenant is not None else ""
        return self.queue.limits.open_session(LimitedClient(name, user, client_ip))

    def _give_up(self, session: OpenSession) -> None:
        """End a session whose place another client gets."""
        handshake = self.handshakes.get(session)
        if handshake is not None:
            handshake.cancel()
        else:
            session.give_up()

    def login_of(self, user: str) -> str:
        """A value that changes with the password of a user: its stored hash, empty for one that is removed or disabled."""
        return self.users.hash_of(user) if self.users is not None else ""

    def ended(self, session: OpenSession) -> None:
        """Stop counting ``session``; may be called twice."""
        self._limits.remove(session)

    def trusts(self, client_ip: str) -> bool:
        """True if this client may relay without AUTH."""
        known = self._trusts.get(client_ip)
        if known is None:
            if len(self._trusts) >= TRUSTED_MAX:
                self._trusts.clear()
            trusted = is_trusted(client_ip, self.settings.trusted_networks)
            known = self._trusts[client_ip] = trusted or self.rules.senders.trusts(client_ip)
        return known

    def check_sender(self, tenant: str, user: str, client_ip: str, sender: str) -> None:
        """Raises NotAccepted unless a client of ``tenant`` (empty: of none) may have the envelope sender."""
        check_suspended(self.queue, tenant, user)
        if tenant:
            trusted = self.trusts(client_ip)
            verified = self.queue.verified
            self.rules.senders.check_sender(tenant, user or client_ip, sender, verified, trusted=trusted)

    def is_proxy(self, peer_ip: str) -> bool:
        """True if this peer names its clients by the PROXY protocol."""
        networks = self.settings.proxies
        return bool(networks) and is_trusted(peer_ip, networks)


def check_suspended(queue: QueueClient, tenant: str, user: str) -> None:
    """Raises NotAccepted for a tenant or user that is suspended."""
    suspended = queue.suspended
    who = suspended_part(suspended, tenant, user) if suspended else ""
    if who:
        raise NotAccepted(f"454 4.7.0 {who} is suspended")


def make_tls_context(listener: ListenerSettings) -> ssl.SSLContext | None:
    """The TLS context of a listener; None without TLS. Raises ConfigError naming its files."""
    tls = listener.tls
    if tls.mode == "none" or tls.certificate_file is None or tls.key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"{tls.certificate_file}, {tls.key_file}: cannot be used for TLS: {exc}"
        ) from exc
    return context
