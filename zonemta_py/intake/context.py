"""What the sessions of one listener share: its settings, its users, its queue, their number."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonemta_py.config.functions import plain_function
from zonemta_py.config.schema import Config, Listener
from zonemta_py.core.errors import ConfigError
from zonemta_py.intake.admission import DiskRoom, is_trusted
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.users import Users, load_users
from zonemta_py.policies import EnvelopePolicy
from zonemta_py.routing import Router

if TYPE_CHECKING:
    from zonemta_py.intake.connection import Connection


@dataclass(frozen=True, slots=True)
class Policy:
    """What a listener's configuration says, its files read."""

    settings: Listener
    hostname: str
    router: Router
    users: Users | None
    tls_context: ssl.SSLContext | None
    dkim_domains: frozenset[str]
    envelope_policies: Sequence[EnvelopePolicy]


def make_policy(settings: Listener, hostname: str, config: Config, router: Router) -> Policy:
    """Read the files that ``settings`` names. Raises ConfigError when one cannot be used."""
    users = load_users(settings.auth.users_file) if settings.auth.users_file else None
    domains = frozenset(entry.domain for entry in config.dkim.keys if entry.domain)
    policies = [plain_function(name) for name in config.policies]
    return Policy(settings, hostname, router, users, make_context(settings), domains, policies)


class Port:
    """One listening address as its sessions see it. ``apply`` changes it under them."""

    def __init__(self, policy: Policy, queue: QueueClient, disk_room: DiskRoom) -> None:
        self.loop = asyncio.get_running_loop()  # asked once: before 3.12 it costs a system call
        self.queue = queue
        self.disk_room = disk_room
        self.stopping = False
        self.sessions: set[Connection] = set()
        self.apply(policy)

    def apply(self, policy: Policy) -> None:
        """Take over a policy, at the start or after a reload."""
        self.settings = policy.settings
        self.name = str(policy.settings.address)
        self.hostname = policy.hostname
        self.router = policy.router
        self.users = policy.users
        self.dkim_domains = policy.dkim_domains
        self.envelope_policies = policy.envelope_policies
        self.tls_context = policy.tls_context
        self.starttls_context = policy.tls_context if policy.settings.tls.mode == "starttls" else None

    def admit(self, session: "Connection") -> bool:
        """Count a new session; False when there are too many."""
        if self.stopping or len(self.sessions) >= self.settings.max_sessions:
            return False
        self.sessions.add(session)
        return True

    def trusts(self, client_ip: str) -> bool:
        """Whether this client may relay without AUTH."""
        return is_trusted(client_ip, self.settings.trusted_networks)

    def is_proxy(self, peer_ip: str) -> bool:
        """Whether this peer speaks for others, and says so first (PROXY protocol)."""
        networks = self.settings.proxies
        return bool(networks) and is_trusted(peer_ip, networks)


def make_context(settings: Listener) -> ssl.SSLContext | None:
    """The TLS context of a listener. Raises ConfigError naming the files that cannot be used."""
    tls = settings.tls
    if tls.mode == "none" or tls.certificate is None or tls.key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"{tls.certificate}, {tls.key}: cannot be used for TLS: {exc}") from exc
    return context
