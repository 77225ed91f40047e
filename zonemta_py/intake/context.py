"""What the sessions of one listener share: settings, users, queue, and the number of sessions."""

import asyncio
import ssl
from collections.abc import Collection
from dataclasses import dataclass

from zonemta_py.config.hooks import Hooks
from zonemta_py.config.schema import Config, ListenerSettings
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import ConfigError, NotAccepted
from zonemta_py.core.networks import network_of
from zonemta_py.intake.admission import (
    TOO_MANY,
    OpenSession,
    Owners,
    SessionLimits,
    Stranger,
    is_trusted,
)
from zonemta_py.intake.authentication import PasswordChecks
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.rejections import Rejections
from zonemta_py.intake.scan import MessageScanner
from zonemta_py.intake.stamping import MessageRules, make_rules
from zonemta_py.intake.turns import IntakeTurns
from zonemta_py.intake.users import Users, load_users
from zonemta_py.queue.intake_limits import LimitedClient, SessionClaim
from zonemta_py.queue.suspensions import suspended_part
from zonemta_py.routing import Router
from zonemta_py.storage.disk_space import DiskSpace

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
        """Use ``settings`` from now on: at the start, and after a reload."""
        self.settings = settings.listener
        self.name = str(settings.listener.address)
        self.users = settings.users
        self.rules = settings.rules
        self.hostname = settings.rules.hostname
        tenants = settings.rules.senders.tenants
        self._tenants = tenants if tenants else None
        self._trusted: dict[str, Owners] = {}  # by address; found before, of none that is a proxy
        mode = self.settings.tls.mode
        self.starttls_context = settings.tls_context if mode == "starttls" else None
        self.implicit_context = settings.tls_context if mode == "implicit" else None

    @property
    def sessions(self) -> Collection[OpenSession]:
        """The sessions that are open."""
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
        """The client of ``session`` is ``user``; returns why it may not stay, as a reply, or an empty text."""
        return self._limits.know(session, self._owners(user, client_ip), self.settings.max_sessions)

    def _owners(self, user: str, client_ip: str) -> Owners:
        """Who has the session of a known client."""
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
        """What changes with the password of a user: its stored hash, empty for one that is removed or disabled."""
        return self.users.hash_of(user) if self.users is not None else ""

    def ended(self, session: OpenSession) -> None:
        """Stop counting ``session``; may be called twice."""
        self._limits.remove(session)

    def trusts(self, client_ip: str) -> bool:
        """Whether this client may relay without AUTH."""
        if is_trusted(client_ip, self.settings.trusted_networks):
            return True
        return self.rules.senders.trusts(client_ip)

    def check_sender(self, tenant: str, user: str, client_ip: str, sender: str) -> None:
        """Raises NotAccepted unless a client of ``tenant`` (empty: of none) may have the envelope sender."""
        check_suspended(self.queue, tenant, user)
        if tenant:
            trusted = self.trusts(client_ip)
            verified = self.queue.verified
            self.rules.senders.check_sender(tenant, user or client_ip, sender, verified, trusted=trusted)

    def is_proxy(self, peer_ip: str) -> bool:
        """Whether this peer names its clients by the PROXY protocol."""
        networks = self.settings.proxies
        return bool(networks) and is_trusted(peer_ip, networks)


def check_suspended(queue: QueueClient, tenant: str, user: str) -> None:
    """Raises NotAccepted for a tenant or user that is suspended."""
    who = suspended_part(queue.suspended, tenant, user)
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
