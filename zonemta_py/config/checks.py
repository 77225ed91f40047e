"""Checks of a configuration that the type of one key cannot express. Pure.

Each check calls ``complain(key, text)``, which raises, for the first key that it refuses.
"""

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import NoReturn

from zonemta_py.config.endpoints import EXPECTED_URL, HTTP, is_url
from zonemta_py.config.schema import (
    Admin,
    Config,
    Dkim,
    ListenerSettings,
    LogSettings,
    QueueSettings,
    ScanSettings,
)
from zonemta_py.config.sending import NO_ADDRESS_LIMITS, AddressLimits
from zonemta_py.config.tenants import check_tenants
from zonemta_py.config.zones import DeliverySettings, DestinationSettings, Retry, Zone
from zonemta_py.core.text import arguments_without_secrets
from zonemta_py.smtp.address import AddressError, is_ip, normalise_domain, strict

# ---- Checks of one zone.

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


# ---- Checks of a whole configuration.

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
LOGGED = ("delivered", "deferred", "bounced", "expired", "lapsed")  # outcomes that the log may have
HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\Z|\[[0-9A-Fa-f:.]+\]\Z")
HEADER_NAME = re.compile(r"[\x21-\x39\x3b-\x7e]+\Z")
SEGMENTS_FROM_MIN = 32 << 10  # smaller chunks are always in the database
PARTITION_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")
PREFIX = re.compile(r"[A-Za-z0-9._:/-]{1,255}\Z")
ZONE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*\Z")


def check(config: Config, complain: Complain) -> None:
    """Refuse values that are not usable, alone or together."""
    if config.hostname is not None and not _is_host(config.hostname):
        complain(
            "hostname", f"found '{config.hostname}', expected a host name such as relay.example.com"
        )
    for i, server in enumerate(config.resolver.nameservers or ()):
        if not is_ip(server.host):
            complain(f"resolver.nameservers[{i}]", f"found '{server.host}', expected an IP address")
    if config.resolver.timeout <= 0:
        complain("resolver.timeout", "must be longer than 0s")
    seen = set()
    for i, listener in enumerate(config.listeners):
        _listener(listener, f"listeners[{i}]", complain)
        if listener.auth.users_file and listener.senders == "tenants" and not config.tenants:
            complain(
                f"listeners[{i}].auth",
                "every user could send as any domain: set tenants (docs/tenants.md), or senders: any if all users "
                "belong to one organisation",
            )
        if config.processes.receivers > listener.max_sessions:
            complain(
                "processes.receivers",
                f"found {config.processes.receivers}, more than the {listener.max_sessions} of "
                f"listeners[{i}].max_sessions, which the receivers share",
            )
        if listener.address.port and listener.address in seen:
            complain(f"listeners[{i}].address", f"{listener.address} appears twice")
        seen.add(listener.address)
    for name, zone in config.zones.items():
        if not ZONE_NAME.match(name):
            complain(f"zones.{name}", "a zone's name is lower-case letters, digits, '_' and '-'")
        check_zone(zone, name, config, complain)
    _scan(config.intake.scan, complain)
    check_tenants(config.tenants, config.zones, config.pools, complain)
    _routes(config, complain)
    _pools(config, complain)
    for name in config.peers:
        if not is_ip(name) and (not _is_host(name.removeprefix("*.")) or name != name.lower()):
            complain(f"peers.{name}", "expected a host in lower case, *.domain, or an IP address")
    _dkim(config.dkim, complain)
    _queue(config.queue, complain)
    _admin(config.admin, complain)
    _log(config.log, complain)


def _is_host(text: str) -> bool:
    return len(text) <= 255 and HOST_NAME.match(text) is not None


def _listener(listener: ListenerSettings, key: str, complain: Complain) -> None:
    for step in ("idle_timeout", "message_timeout"):
        if getattr(listener, step) <= 0:
            complain(f"{key}.{step}", "must be longer than 0s: every client would be cut off")
    if listener.max_message_size <= 0:
        complain(
            f"{key}.max_message_size",
            "found 0, expected a size such as 50MiB: it would refuse every message",
        )
    names = [name for pair in listener.submission_key.headers for name in pair]
    if any(not HEADER_NAME.match(name) for name in names) or () in listener.submission_key.headers:
        complain(f"{key}.submission_key.headers", "expected lists of names of header fields")
    sources = {each.lower(): each for each in ("X-Submission-Key", "ENVID", "Idempotency-Key", *names)}
    for name in listener.submission_key.refuse_other_content:
        if name.lower() not in sources:
            complain(
                f"{key}.submission_key.refuse_other_content",
                f"'{name}' is no source of keys; there are {', '.join(sources.values())}",
            )
    if not all(HEADER_NAME.match(name) for name in listener.drop_headers):
        complain(f"{key}.drop_headers", "expected names of header fields")
    for option in ("campaign", "tags"):
        if not HEADER_NAME.match(getattr(listener.options, option) or "x"):
            complain(f"{key}.options.{option}", "expected the name of a header field")
    tls = listener.tls
    if tls.mode != "none" and (tls.certificate_file is None or tls.key_file is None):
        complain(f"{key}.tls", f"mode '{tls.mode}' needs certificate_file and key_file")
    if listener.auth.users_file and listener.auth.require_tls and tls.mode == "none":
        complain(
            f"{key}.auth",
            "passwords would be sent unencrypted: set tls.mode, or require_tls: false on a network you trust",
        )


def _scan(scan: ScanSettings, complain: Complain) -> None:
    url = scan.rspamd
    if url is not None and not is_url(url, HTTP):
        complain("intake.scan.rspamd", f"found '{url}', expected {EXPECTED_URL}")
    if scan.timeout <= 0:
        complain("intake.scan.timeout", "must be longer than 0s")


def _log(log: LogSettings, complain: Complain) -> None:
    for i, name in enumerate(log.outcomes):
        if name not in LOGGED:
            complain(f"log.outcomes[{i}]", f"found '{name}', allowed: {', '.join(LOGGED)}")


def _admin(admin: Admin, complain: Complain) -> None:
    open_to_others = [each for each in admin.address if not each.path and not _is_loopback(each.host)]
    if open_to_others and admin.token_file is None and admin.tokens_file is None:
        where = ", ".join(map(str, open_to_others))
        complain("admin.tokens_file", f"other hosts can reach {where}: tokens are required")
    if open_to_others and admin.mail_without_token:
        complain(
            "admin.mail_without_token",
            f"other hosts can reach {open_to_others[0]}: every admin.address has to be a loopback address or a Unix socket",
        )
    if (admin.tls.certificate_file is None) != (admin.tls.key_file is None):
        complain("admin.tls", "certificate_file and key_file are both needed")
    if admin.mail and not admin.address:
        complain("admin.mail", "admin.address is null: there is no listener that could accept mail")
    if (
        admin.mail
        and admin.token_file is None
        and admin.tokens_file is None
        and not admin.mail_without_token
    ):
        complain(
            "admin.mail",
            "without tokens every program on this machine could send mail, and every client of a proxy on it: set "
            "admin.tokens_file (zonemta token add NAME --role send) or admin.token_file, or admin.mail_without_token: true",
        )


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_ip(host) and ip_address(host).is_loopback)


def _queue(queue: QueueSettings, complain: Complain) -> None:
    if queue.segments_from is not None and queue.segments_from < SEGMENTS_FROM_MIN:
        complain(
            "queue.segments_from",
            f"found {queue.segments_from}, expected at least 32KiB; null: bodies stay in the database",
        )
    if queue.store == "s3" and not queue.s3.bucket:
        complain("queue.s3.bucket", "store: s3 needs a bucket")
    if not is_url(queue.redis.url, ("redis", "rediss", "unix")):
        complain(
            "queue.redis.url",
            f"found '{queue.redis.url}', expected redis:// or rediss:// with a host, and a port up to "
            "65535 if there is one, or unix:// with a path",
        )
    for key, url in (("endpoint", queue.s3.endpoint), ("notices", queue.s3.notices)):
        if url is not None and not is_url(url, HTTP):
            complain(f"queue.s3.{key}", f"found '{url}', expected {EXPECTED_URL}")
    name = queue.shared.name
    if name is not None and not PARTITION_NAME.match(name):
        complain("queue.shared.name", f"found '{name}'; letters, digits, '.', '_' and '-'")
    for key, value in (("redis", queue.redis.prefix), ("s3", queue.s3.prefix)):
        if not PREFIX.match(value):
            complain(
                f"queue.{key}.prefix", f"found '{value}'; letters, digits, '.', '_', '-', ':' and '/'"
            )
    for key, seconds in (("lease", queue.shared.lease), ("poll", queue.shared.poll)):
        if seconds <= 0:
            complain(f"queue.shared.{key}", "must be longer than 0s")


def _routes(config: Config, complain: Complain) -> None:
    for i, rule in enumerate(config.routing):
        key = f"routing[{i}]"
        conditions = [rule.header, rule.sender_domain, rule.recipient_domain, rule.source]
        if sum(condition is not None for condition in conditions) != 1:
            complain(key, "exactly one of header, sender_domain, recipient_domain, source is needed")
        if rule.header is not None and not HEADER_NAME.match(rule.header):
            complain(f"{key}.header", f"found '{rule.header}', expected the name of a header field")
        if rule.zone is None and rule.header is None:
            complain(key, "a zone is needed")
        if rule.zone is not None and rule.zone not in config.zones:
            complain(f"{key}.zone", f"no zone '{rule.zone}'; zones: {', '.join(sorted(config.zones))}")


def _pools(config: Config, complain: Complain) -> None:
    limits: dict[str | None, tuple[str, AddressLimits]] = {}  # by address, and where they are
    for name, pool in config.pools.items():
        if not any(entry.weight for entry in pool):
            complain(f"pools.{name}", "needs an address with a weight above 0")
        for i, entry in enumerate(pool):
            if entry.ehlo is not None and not _is_host(entry.ehlo):
                complain(f"pools.{name}[{i}].ehlo", f"found '{entry.ehlo}', expected a host name")
            if entry.address is not None and not is_ip(entry.address):
                complain(
                    f"pools.{name}[{i}].address", f"found '{entry.address}', expected an IP address"
                )
            if entry.limits == NO_ADDRESS_LIMITS:
                continue
            at = f"pools.{name}[{i}]"
            where, known = limits.setdefault(entry.address, (at, entry.limits))
            if known != entry.limits:
                complain(
                    f"{at}.limits",
                    f"differ from those of the same address in {where}: give them once, they hold in all pools",
                )


def _dkim(dkim: Dkim, complain: Complain) -> None:
    seen = set()
    for i, entry in enumerate(dkim.keys):
        key = f"dkim.keys[{i}]"
        if not entry.domain or not entry.selector or entry.key_file is None:
            complain(key, "domain, selector and key_file are needed")
        try:
            known = normalise_domain(entry.domain) == entry.domain
        except AddressError:
            known = False
        if not known:
            complain(
                f"{key}.domain", f"found '{entry.domain}', expected a domain in lower-case A-labels"
            )
        if not HOST_NAME.match(entry.selector):
            complain(f"{key}.selector", f"found '{entry.selector}', expected labels such as s2026")
        if (entry.domain, entry.selector) in seen:
            complain(key, f"{entry.selector}._domainkey.{entry.domain} appears twice")
        seen.add((entry.domain, entry.selector))
    for name, fields in (("headers", dkim.headers), ("oversign", dkim.oversign)):
        if any(not HEADER_NAME.match(field) or field != field.lower() for field in fields):
            complain(f"dkim.{name}", "expected names of header fields in lower case")
        if len(set(fields)) != len(fields):
            complain(f"dkim.{name}", "a field appears twice")
    if "from" not in dkim.headers:
        complain("dkim.headers", "from must be signed (RFC 6376 section 5.4)")
    if not set(dkim.oversign) <= set(dkim.headers):
        complain("dkim.oversign", "only fields of dkim.headers can be oversigned")
