"""Checks of a zone that the type of one key cannot express. Pure. See ``config.checks``."""

from collections.abc import Callable
from typing import NoReturn

from zonemta_py.config.endpoints import EXPECTED_URL, HTTP, is_url
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import DeliverySettings, DestinationSettings, Retry, Zone
from zonemta_py.core.text import arguments_without_secrets
from zonemta_py.smtp.address import AddressError, normalise_domain, strict

RECIPIENT_WORDS = ("recipient", "user", "domain", "extension")
COMMAND_WORDS = (*RECIPIENT_WORDS, "sender", "message")

Complain = Callable[[str, str], NoReturn]


def check_zone(zone: Zone, name: str, config: Config, complain: Complain) -> None:
    """Refuse values of one zone that are not usable, alone or together."""
    key = f"zones.{name}"
    seen: set[str] = set()
    for i, item in enumerate(zone.destinations):
        _domains(item, seen, f"{key}.destinations[{i}].domains", complain)
    for prefix, part in zone.parts():
        _delivery(part, f"{key}.{prefix}", zone.transport == "lmtp", config, complain)
    _transport(zone, key, complain)
    if zone.bounce.double_bounce_to is not None:
        try:
            strict(zone.bounce.double_bounce_to)
        except AddressError as exc:
            complain(f"{key}.bounce.double_bounce_to", f"found '{zone.bounce.double_bounce_to}': {exc}")
    if zone.bounce.zone is not None and zone.bounce.zone not in config.zones:
        complain(
            f"{key}.bounce.zone",
            f"no zone '{zone.bounce.zone}'; zones: {', '.join(sorted(config.zones))}",
        )


def _domains(item: DestinationSettings, seen: set[str], key: str, complain: Complain) -> None:
    if not item.domains:
        complain(key, "at least one domain is needed, such as gmail.com, '*.example' or '*'")
    for domain in item.domains:
        name = domain.removeprefix("*.") if domain != "*" else "any.example"
        try:
            known = name.startswith("[") or normalise_domain(name) == name
        except AddressError:
            known = False
        if not known:
            complain(key, f"found '{domain}', expected a domain in lower-case A-labels, *.domain or *")
        if domain in seen:
            complain(key, f"'{domain}' appears twice")
        seen.add(domain)


def _delivery(
    settings: DeliverySettings, prefix: str, lmtp: bool, config: Config, complain: Complain
) -> None:
    """Check what a zone and its ``destinations`` may both set. ``prefix``: in front of its keys."""
    if settings.pool not in config.pools:
        complain(f"{prefix}pool", f"no pool '{settings.pool}'; pools: {', '.join(sorted(config.pools))}")
    fallback = settings.fallback_pool
    if fallback is not None and fallback not in config.pools:
        complain(
            f"{prefix}fallback_pool", f"no pool '{fallback}'; pools: {', '.join(sorted(config.pools))}"
        )
    elif fallback == settings.pool:
        complain(f"{prefix}fallback_pool", f"'{fallback}' is the pool that it would replace")
    for step in ("connect", "command", "data", "dot"):
        if getattr(settings.timeouts, step) <= 0:
            complain(f"{prefix}timeouts.{step}", "must be longer than 0s")
    _retry(settings.retry, f"{prefix}retry", complain)
    auth = settings.smarthost_auth
    if auth.username is not None and not settings.smarthost:
        complain(f"{prefix}smarthost_auth", "needs a smarthost")
    if (auth.username is None) != (auth.password_file is None):
        complain(f"{prefix}smarthost_auth", "needs both username and password_file")
    if any(not host.port for host in settings.smarthost) and not lmtp:
        complain(f"{prefix}smarthost", "a Unix socket needs transport: lmtp")
    if lmtp and not settings.smarthost:
        complain(f"{prefix}smarthost", "transport: lmtp needs a smarthost: host:port or unix:/path")
    if settings.tls_ca_file is not None and settings.tls in ("off", "opportunistic"):
        complain(f"{prefix}tls_ca_file", "no certificate is verified with tls: " + settings.tls)
    if settings.tls == "implicit" and not settings.smarthost:
        complain(f"{prefix}tls", "implicit needs a smarthost: mail hosts on the Internet offer STARTTLS")
    if settings.tls == "mta-sts" and settings.smarthost:
        complain(f"{prefix}tls", "mta-sts is for MX hosts; for a smarthost use required")
    if auth.username is not None and settings.tls == "opportunistic":
        complain(
            f"{prefix}tls",
            "a password needs tls: required, or tls: off on a network you trust",
        )


def _transport(zone: Zone, key: str, complain: Complain) -> None:
    """Check the section of the zone's transport; sections of other transports do not apply."""
    if zone.transport == "maildir":
        if zone.maildir.path is None:
            complain(f"{key}.maildir", "needs a path, such as /var/mail/{domain}/{user}")
        else:
            _pattern(str(zone.maildir.path), RECIPIENT_WORDS, f"{key}.maildir.path", complain)
    if zone.transport == "pipe":
        if bool(zone.pipe.command) == (zone.pipe.preset != "none"):
            complain(f"{key}.pipe", "needs either a command or a preset")
        for word in zone.pipe.command:
            _pattern(word, COMMAND_WORDS, f"{key}.pipe.command", complain)
    if zone.transport == "http" and not is_url(zone.http.url or "", HTTP):
        complain(
            f"{key}.http.url",
            f"found '{zone.http.url or ''}', expected {EXPECTED_URL}",
        )
    for part in ("pipe", "python", "http"):
        if getattr(zone, part).timeout <= 0:
            complain(f"{key}.{part}.timeout", "must be longer than 0s")
    if zone.transport == "python" and zone.python.function is None:
        complain(f"{key}.python", "needs a function: package.module.function")


def _pattern(text: str, words: tuple[str, ...], key: str, complain: Complain) -> None:
    try:
        text.format(**dict.fromkeys(words, "x"))
    except (KeyError, IndexError, ValueError, AttributeError):
        allowed = ", ".join(f"{{{word}}}" for word in words)
        complain(
            key,
            f"found '{arguments_without_secrets([text])[0]}'; placeholders: {allowed}; a literal brace is doubled",
        )


def _retry(retry: Retry, key: str, complain: Complain) -> None:
    own = retry.priority
    lists = {"delays": retry.delays, "priority.normal": own.normal}
    for name, delays in lists.items():
        if not delays:
            complain(f"{key}.{name}", "at least one delay is needed")
    lists |= {"priority.urgent": own.urgent, "priority.nonurgent": own.nonurgent}
    lists |= {
        "exponential.first": (retry.exponential.first,),
        "exponential.longest": (retry.exponential.longest,),
    }
    for name, delays in lists.items():
        if any(delay <= 0 for delay in delays):
            complain(f"{key}.{name}", "a delay must be longer than 0s")
    if (retry.policy in ("function", "backoff")) != (retry.function is not None):
        complain(
            f"{key}.function",
            f"policy: {retry.policy} uses no function"
            if retry.function
            else f"policy: {retry.policy} needs a function: package.module.function",
        )
