"""Checks of a configuration on this machine: files, directories, addresses, descriptors. For ``check`` and ``serve``.

Steps: ``verify`` ─▶ ``warnings``, which ``zonemta check`` prints and a relay logs ─▶ ``check_addresses``, only by ``check``.

Invariants:

- ``verify`` loads or tests all that the configuration names, and returns the DKIM keys that it has loaded.
- ``_prefix_errors`` puts the key in front of a ConfigError; ``verify`` adds file and line.
- A warning is about what is allowed and probably not intended; it never refuses a start.
- The limit of file descriptors covers sessions, connections, HTTP and the RESERVE of the store: a database that cannot open its
  next file is lost until it is opened again.

The only state is the task of ``CertificateWatch``: made ─ start ─▶ looks once a day ─ close ─▶ ended.

Callers: ``relay.parts.read_config`` at a start and at each reload, ``Relay`` for warnings, ``zonemta check`` and ``zonemta serve``.

Example: a certificate of the first listener that cannot be read is an error that begins with file, line and ``listeners[0].tls``.

Source: capabilities(7) for CAP_NET_BIND_SERVICE; getrlimit(2).
"""

import asyncio
import logging
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address
from pathlib import Path
from typing import TypeVar

from cryptography import x509

from zonemta_py.admin.tokens import check_tokens
from zonemta_py.config.endpoints import HostPort, Network
from zonemta_py.config.hooks import NO_HOOKS, Hooks, plain_function, read_token
from zonemta_py.config.load import located
from zonemta_py.config.reply_rules import load_rules
from zonemta_py.config.schema import HTTP_CONNECTIONS_MAX, Admin, Config
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.warmup import falling, read_warmups
from zonemta_py.config.zones import DeliverySettings
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.files import check_owner, exposed_parent
from zonemta_py.delivery.dkim import DkimKeys, load_keys
from zonemta_py.delivery.egress import read_egress
from zonemta_py.delivery.endpoints import read_password
from zonemta_py.delivery.local_agent import is_local, make_transport
from zonemta_py.intake.context import make_tls_context
from zonemta_py.intake.users import load_users
from zonemta_py.processes.supervisor import cores, process_counts
from zonemta_py.routing import DEQUEUE_TRANSPORT
from zonemta_py.schedule.retry import make_policy
from zonemta_py.smtp.address import with_parents
from zonemta_py.storage.leveldb import TABLES_OPEN_MAX
from zonemta_py.transports.connect import verifying_context

log = logging.getLogger(__name__)


# ---- Warnings about certificates of listeners that end soon.

SOON = timedelta(days=14)
LOOK_EVERY_S = 24 * 3600.0


def certificate_warnings(config: Config, now: datetime) -> Iterator[str]:
    """A warning for each certificate that ends within SOON, or has ended. Files that cannot be read are left out."""
    files = {
        f"listeners[{i}].tls.certificate_file": listener.tls.certificate_file
        for i, listener in enumerate(config.listeners)
        if listener.tls.mode != "none"
    }
    files["admin.tls.certificate_file"] = config.admin.tls.certificate_file
    for key, path in files.items():
        end = _end_of(path) if path is not None else None
        if end is None or end - now > SOON:
            continue
        when = f"has ended on {end:%Y-%m-%d}" if end <= now else f"ends on {end:%Y-%m-%d %H:%M} UTC"
        yield f"{key}: {path} {when}"


def _end_of(path: Path) -> datetime | None:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        return None  # the listener refuses it


class CertificateWatch:
    """Logs the warnings about the present configuration once a day."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look every day: at the start, `preflight.warnings` has them."""
        self._task = asyncio.create_task(self._run(), name="certificates")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for warning in certificate_warnings(self._config(), clock.utc(clock.now_ms())):
                log.warning("%s", warning)

    async def close(self) -> None:
        """Look no more; idempotent."""
        if self._task is not None:
            self._task.cancel()


# ---- File descriptors: as many as the system allows, and no configuration that could use up those of the store.
#
# A database that cannot open its next file is lost until it is opened again, so sessions must never get there.

RESERVE = TABLES_OPEN_MAX + 64  # of the store, its segments, the event log, DNS, pipes and logs


def raise_descriptor_limit() -> None:
    """Raise the soft limit of this process, and of its children, to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptors_needed(config: Config, hooks: Hooks = NO_HOOKS) -> int:
    """The most descriptors that the process with the queue may use at once."""
    receivers, senders = process_counts(config, cores(), hooks)
    needed = RESERVE
    if receivers == 0:
        needed += sum(  # as many connections of proxies have no place yet
            listener.max_sessions * (2 if listener.proxies else 1) for listener in config.listeners
        )
    if senders == 0:
        needed += sum(zone.connections for zone in config.zones.values())
    return needed + (HTTP_CONNECTIONS_MAX if config.admin.address else 0)


def check_descriptors(config: Config, hooks: Hooks = NO_HOOKS) -> None:
    """Raises ConfigError when the system allows fewer descriptors than ``config`` may use."""
    hard, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[1], descriptors_needed(config, hooks)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"listeners, zones: sessions, connections and the store may need {needed} file descriptors, and "
            f"this process may have {hard}: raise the limit (LimitNOFILE=, ulimit -n), or lower max_sessions "
            "or connections"
        )


# ---- Warnings about keys and passwords that every user of this machine can read, and about directories that others can replace.

SHOWN = 5  # files with a warning of their own


def secret_warnings(config: Config) -> Iterator[str]:
    """A warning for each file with a secret that others may read, at most ``SHOWN``, then one for the others.

    Files that are not there are left out.
    """
    found = 0
    for key, path in _secrets(config):
        try:
            is_open = path is not None and path.stat().st_mode & stat.S_IROTH
        except OSError:
            continue  # `preflight.verify` says so
        found += bool(is_open)
        if is_open and found <= SHOWN:
            yield f"{key}: every user of this machine can read {path}: chmod 600, or 640 for the group of the relay"
    if found > SHOWN:
        yield f"every user of this machine can read {found - SHOWN} more files with keys or passwords: chmod 600 them"


def directory_warnings(config: Config) -> Iterator[str]:
    """A warning for queue and event log below a directory of another user; ``relay.pid`` and ``admin.token`` are in the queue's."""
    for key, path in (("queue", config.queue.directory), ("events", config.events.directory)):
        why = exposed_parent(path)
        if why:
            yield (
                f"{key}.directory: {why}, so another user can replace {path}: let the directories above it belong to root "
                "or to the user of the relay, and have no mode o+w (or a sticky bit)"
            )


def _secrets(config: Config) -> Iterator[tuple[str, Path | None]]:
    for i, entry in enumerate(config.dkim.keys):
        yield f"dkim.keys[{i}].key_file", entry.key_file
    for i, listener in enumerate(config.listeners):
        yield f"listeners[{i}].tls.key_file", listener.tls.key_file
    yield "admin.tls.key_file", config.admin.tls.key_file
    yield "admin.token_file", config.admin.token_file
    for name, zone in config.zones.items():
        for prefix, part in zone.parts():
            yield f"zones.{name}.{prefix}smarthost_auth.password_file", part.smarthost_auth.password_file


# ---- preflight

T = TypeVar("T")
UNSIGNED_SHOWN = 5  # domains in a warning
CAP_NET_BIND_SERVICE = 1 << 10  # Source: capabilities(7)


def verify(config: Config, hooks: Hooks = NO_HOOKS) -> DkimKeys:
    """Load or test all that ``config`` names; returns the keys of DKIM. Raises ConfigError with file, line and key."""
    try:
        return _verify(config, hooks)
    except ConfigError as exc:
        raise ConfigError(located(config, str(exc))) from exc


def _verify(config: Config, hooks: Hooks) -> DkimKeys:
    for i, listener in enumerate(config.listeners):
        _prefix_errors(f"listeners[{i}].tls", partial(make_tls_context, listener))
        if listener.auth.users_file is not None:
            _prefix_errors(
                f"listeners[{i}].auth.users_file", partial(load_users, listener.auth.users_file)
            )
    for name, zone in config.zones.items():
        for prefix, part in zone.parts():
            _verify_delivery(part, f"zones.{name}.{prefix}", hooks)
        if zone.bounce.function is not None:
            _prefix_errors(
                f"zones.{name}.bounce.function", partial(plain_function, zone.bounce.function)
            )
        if is_local(zone):
            _prefix_errors(f"zones.{name}.{zone.transport}", partial(make_transport, zone, ""))
    for function in config.policies:
        _prefix_errors("policies", partial(plain_function, function))
    _prefix_errors("admin.token_file", partial(read_token, config.admin.token_file))
    _prefix_errors("admin.tokens_file", partial(check_tokens, config))
    if config.classify.file is not None:
        _prefix_errors("classify.file", partial(load_rules, config.classify.file))
    dkim_keys = _prefix_errors("dkim", partial(load_keys, config.dkim))
    read_egress(config)
    for name, pool in config.pools.items():
        for i, entry in enumerate(pool):
            if entry.address is not None and entry.weight:
                _bindable(f"pools.{name}[{i}].address", entry.address)
    check_descriptors(config, hooks)
    _writable("queue.directory", config.queue.directory)
    _writable("events.directory", config.events.directory)
    return dkim_keys


def _verify_delivery(settings: DeliverySettings, prefix: str, hooks: Hooks) -> None:
    """Test what a zone and its ``destinations`` may both name. ``prefix``: in front of its keys."""
    _prefix_errors(
        f"{prefix}retry.function", partial(make_policy, settings.retry, load=hooks.backoff_function)
    )
    if settings.tls_ca_file is not None:
        _prefix_errors(f"{prefix}tls_ca_file", partial(_readable_authorities, settings.tls_ca_file))
    if settings.smarthost_auth.password_file is not None:
        _prefix_errors(f"{prefix}smarthost_auth.password_file", partial(read_password, settings))


def _readable_authorities(path: Path) -> None:
    """Raises ConfigError."""
    try:
        verifying_context(path)
    except OSError as exc:
        raise ConfigError(f"{path}: the certificates cannot be used: {exc}") from exc


def warnings(config: Config, hostname: str) -> Iterator[str]:
    """Settings that are allowed and probably not intended."""
    if "." not in hostname:
        yield f"hostname is '{hostname}', which is not a full domain name; set it in the configuration"
    for i, listener in enumerate(config.listeners):
        for key in ("trusted_networks", "proxies"):
            if _is_everyone(getattr(listener, key)):
                what = "relay" if key == "trusted_networks" else "name any address as its own"
                yield f"listeners[{i}].{key} lets every client {what}"
        if not _may_bind(listener.address.port):
            yield (
                f"listeners[{i}].address: port {listener.address.port} needs the capability CAP_NET_BIND_SERVICE"
            )
    for name, zone in config.zones.items():
        if zone.transport == DEQUEUE_TRANSPORT:
            yield f"zones.{name}.transport is {DEQUEUE_TRANSPORT}: its mail waits for a program that embeds this relay"
    if config.admin.mail and config.admin.mail_without_token:
        yield (
            "admin.mail_without_token: every program on this machine can send mail, and so can every client of a proxy "
            "on it that adds no X-Forwarded-For"
        )
    yield from _unsigned_tenants(config)
    yield from secret_warnings(config)
    yield from directory_warnings(config)
    yield from certificate_warnings(config, clock.utc(clock.now_ms()))
    if config.warmup.file is not None:
        with suppress(ConfigError):  # a reload has used the file; it may be gone by now
            yield from falling(read_warmups(config.warmup.file))
    if config.queue.durability == "none":
        yield "durability is none: accepted mail is lost in a power failure. For benchmarks only"
    if config.queue.store == "memory":
        yield "queue.store is memory: accepted mail is lost when the relay stops. For tests only"


def _unsigned_tenants(config: Config) -> Iterator[str]:
    """A warning about domains of tenants that no key signs for, if there are keys."""
    keys = {entry.domain for entry in config.dkim.keys if entry.domain}
    above = {domain for key in keys for domain in with_parents(key.partition(".")[2])}
    tenants = Tenants(config.tenants)

    def is_signed(name: str, domain: str) -> bool:
        base = domain.removeprefix("*.")
        below = domain != base and base in above
        return below or any(key in keys and tenants.signs_for(name, key) for key in with_parents(base))

    found = [
        f"{domain} ({name})"
        for name, tenant in config.tenants.items()
        for domain in tenant.domains
        if keys and not is_signed(name, domain)
    ]
    if found:
        others = f" and {len(found) - UNSIGNED_SHOWN} others" if len(found) > UNSIGNED_SHOWN else ""
        yield (
            f"dkim.keys has no key for {', '.join(found[:UNSIGNED_SHOWN])}{others}: their mail is not signed"
        )


def _is_everyone(networks: Sequence[Network]) -> bool:
    """True if ``networks`` together are all of IPv4 or of IPv6."""
    four = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    six = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    return any(network.prefixlen == 0 for network in four) or any(
        network.prefixlen == 0 for network in six
    )


def _may_bind(port: int) -> bool:
    """True if this process may listen on ``port``, or if the system does not say."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
        status = Path("/proc/self/status").read_text()
        effective = int(status.partition("CapEff:")[2].split()[0], 16)
    except (OSError, ValueError, IndexError):
        return True
    return port == 0 or port >= first or bool(effective & CAP_NET_BIND_SERVICE)


def check_addresses(config: Config) -> list[str]:
    """Raises ConfigError for an address of a listener that is in use or not of this machine; returns warnings.

    Only for a relay that is not running. It runs without the HTTP listener when the default address is in use.
    """
    for number, listener in enumerate(config.listeners):
        if problem := _problem(listener.address):
            raise ConfigError(f"listeners[{number}].address: {problem}")
    for each in config.admin.address:
        problem = "" if each.path else _problem(HostPort(each.host, each.port))
        if problem and needs_admin_address(config.admin):
            raise ConfigError(f"admin.address: {problem}")
        if problem:
            return [
                f"admin.address: {problem}; the relay will run without health, metrics, API and page"
            ]
    return []


def needs_admin_address(admin: Admin) -> bool:
    """True if a relay must not start without its HTTP listener: it accepts mail there, or has an address that is not the default."""
    return admin.mail or admin.address != Admin().address


def _problem(address: HostPort) -> str:
    """The reason for which an address cannot be used, or empty."""
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, info in found:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(info)
    except OSError as exc:
        return f"cannot listen on {address}: {exc.strerror or exc}"
    return ""


def _prefix_errors(key: str, test: Callable[[], T]) -> T:
    """The result of ``test``; a ConfigError gets ``key`` in front."""
    try:
        return test()
    except ConfigError as exc:
        raise ConfigError(f"{key}: {exc}") from exc


def _bindable(key: str, address: str) -> None:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            sock.bind((address, 0))
        except OSError as exc:
            raise ConfigError(
                f"{key}: {address} is not an address of this machine ({exc.strerror})"
            ) from exc


def _writable(key: str, directory: Path) -> None:
    """Raises ConfigError for a directory that cannot be written, or created."""
    existing = directory
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
    except OSError as exc:  # such as a name that is too long
        raise ConfigError(f"{key}: {exc.strerror}: {directory}") from exc
    if not existing.is_dir():
        raise ConfigError(f"{key}: {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK) or existing == Path("/proc"):
        raise ConfigError(f"{key}: {existing} cannot be written by this user")
    if existing == directory:
        try:
            check_owner(directory)
        except PermissionError as exc:
            raise ConfigError(f"{key}: {directory}: {exc.strerror}") from exc
