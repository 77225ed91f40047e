"""Whether a configuration is usable on this machine: files, directories, addresses. For ``check`` and ``serve``."""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address
from pathlib import Path
from typing import TypeVar

from zonemta_py.admin.tokens import check_tokens
from zonemta_py.config.endpoints import HostPort, Network
from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.load import located
from zonemta_py.config.references import plain_function, read_token
from zonemta_py.config.reply_rules import load_rules
from zonemta_py.config.schema import Admin, Config
from zonemta_py.config.tenants import Tenants
from zonemta_py.config.warmup import falling, read_warmups
from zonemta_py.config.zones import DeliverySettings
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.files import check_owner
from zonemta_py.delivery.dkim import DkimKeys, load_keys
from zonemta_py.delivery.egress import read_egress
from zonemta_py.delivery.endpoints import read_password
from zonemta_py.delivery.local_agent import is_local, make_transport
from zonemta_py.intake.context import make_tls_context
from zonemta_py.intake.users import load_users
from zonemta_py.relay.certificates import certificate_warnings
from zonemta_py.relay.descriptors import check_descriptors
from zonemta_py.relay.secret_files import directory_warnings, secret_warnings
from zonemta_py.routing import DEQUEUE_TRANSPORT
from zonemta_py.schedule.retry import make_policy
from zonemta_py.smtp.address import with_parents
from zonemta_py.transports.connect import verifying_context

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
    """Whether ``networks`` together are all of IPv4 or of IPv6."""
    four = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    six = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    return any(network.prefixlen == 0 for network in four) or any(
        network.prefixlen == 0 for network in six
    )


def _may_bind(port: int) -> bool:
    """Whether this process may listen on ``port``; True where the system does not tell."""
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
    """Whether a relay must not start without its HTTP listener: it takes mail there, or was given an address."""
    return admin.mail or admin.address != Admin().address


def _problem(address: HostPort) -> str:
    """Why an address cannot be used, or empty."""
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
