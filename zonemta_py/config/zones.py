"""Settings of a zone: its limits, transport, retries, reports and time limits. Values are frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar

from zonemta_py.config.endpoints import Smarthost
from zonemta_py.config.values import (
    DAY,
    HOUR,
    MINUTE,
    ExitCode,
    Percent,
    Rate,
    Seconds,
    Size,
    choice,
    number,
)


@dataclass(frozen=True, slots=True)
class MaildirSettings:
    """``transport: maildir``. ``path`` contains {user}, {domain}, {recipient} or {extension}."""

    path: Path | None = None
    create: bool = False


@dataclass(frozen=True, slots=True)
class PipeSettings:
    """``transport: pipe``: a command or a preset, not both."""

    command: tuple[str, ...] = field(default=(), metadata={"arguments": True})
    preset: str = choice("none", "maildrop", "dovecot")
    timeout: Seconds = Seconds(5 * MINUTE)
    temporary: tuple[ExitCode, ...] = tuple(map(ExitCode, (1, 71, 73, 74, 75, 78, 100, 111, 126, 127)))


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """``transport: python``: the function that delivers."""

    function: str | None = None
    timeout: Seconds = Seconds(5 * MINUTE)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """``transport: http``."""

    url: str | None = None
    token_file: Path | None = None
    timeout: Seconds = Seconds(5 * MINUTE)


@dataclass(frozen=True, slots=True)
class BlackholeSettings:
    """``transport: blackhole``. ``latency`` is the time that each recipient takes."""

    latency: Seconds = Seconds(0)


@dataclass(frozen=True, slots=True)
class ExponentialRetry:
    """``policy: exponential``: each delay is ``factor`` times the one before, at most ``longest``."""

    first: Seconds = Seconds(5 * MINUTE)
    factor: int = number(2, 1, 100)
    longest: Seconds = Seconds(4 * HOUR)


@dataclass(frozen=True, slots=True)
class QuadraticRetry:
    """``policy: quadratic``: the n-th retry is due (n * growth)² seconds after acceptance."""

    growth: int = number(20, 1, 1000)


@dataclass(frozen=True, slots=True)
class PriorityRetry:
    """``policy: priority``: delays by the message's Priority field; an empty list stands for ``normal``."""

    urgent: tuple[Seconds, ...] = ()
    normal: tuple[Seconds, ...] = tuple(Seconds(s) for s in (900, 1800, HOUR, 2 * HOUR, 4 * HOUR))
    nonurgent: tuple[Seconds, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """The times of retries of a deferred recipient, and the end of the attempts.

    ``policy`` selects which parameters apply: ``delays`` belongs to ladder, ``function`` to function and
    backoff, and every other policy has a section that is named like it.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {
        "first": "exponential.first",
        "factor": "exponential.factor",
        "longest": "exponential.longest",
        "skip": "quadratic.growth",
        "priorities": "priority",
    }

    policy: str = choice("ladder", "exponential", "quadratic", "priority", "function", "backoff")
    delays: tuple[Seconds, ...] = tuple(
        Seconds(s) for s in (300, 420, 480, 1500, 4500, 2 * HOUR, 4 * HOUR)
    )
    exponential: ExponentialRetry = ExponentialRetry()
    quadratic: QuadraticRetry = QuadraticRetry()
    priority: PriorityRetry = PriorityRetry()
    function: str | None = None
    jitter: Percent = number(10, 0, 100)
    give_up_after: Seconds = Seconds(2 * DAY)
    warn_after: Seconds | None = Seconds(4 * HOUR)


@dataclass(frozen=True, slots=True)
class BounceSettings:
    """Reports to the sender about failed and delayed recipients. ``return_`` is the key ``return``."""

    format: str = choice("rfc3464", "qsbmf")
    aggregate: str = choice("minute", "attempt", "message")
    reports_per_hour: int | None = number(100, 1, 1_000_000)
    return_: str = choice("full", "headers")
    max_bytes: Size = Size(64 << 10)
    double_bounce_to: str | None = None
    zone: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits for a peer in each step. Source: RFC 5321 section 4.5.3.2."""

    connect: Seconds = Seconds(30)
    command: Seconds = Seconds(5 * MINUTE)
    data: Seconds = Seconds(3 * MINUTE)
    dot: Seconds = Seconds(10 * MINUTE)
    idle: Seconds = Seconds(30)


@dataclass(frozen=True, slots=True)
class SmarthostAuth:
    """Credentials for a smarthost; the password is the first line of a file."""

    username: str | None = None
    password_file: Path | None = None


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Settings of delivery that a zone may override for some destinations."""

    pool: str = "default"
    fallback_pool: str | None = None
    fallback_after: int = number(3, 1, 1000)
    messages_per_connection: int = number(100)
    recipients_per_transaction: int = number(100, 1, 10_000)
    smarthost: tuple[Smarthost, ...] = ()
    smarthost_auth: SmarthostAuth = SmarthostAuth()
    port: int = number(25, 1, 65535)
    tls: str = choice("opportunistic", "off", "required", "implicit", "mta-sts", later=("dane",))
    tls_ca_file: Path | None = None
    retry: Retry = Retry()
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class DestinationSettings(DeliverySettings):
    """An item of ``destinations``. A domain is a name, ``*.name`` for those below it, or ``*``.

    ``connections`` None: as many as the zone allows.
    """

    domains: tuple[str, ...] = ()
    connections: int | None = number(None, 1, 10_000)

    def matches(self, domain: str) -> bool:
        """True if these are the settings for mail to ``domain``, which is normalised."""
        return any(
            domain == pattern or (pattern[0] == "*" and domain.endswith(pattern[1:]))
            for pattern in self.domains
        )


DELIVERY_KEYS = tuple(each.name for each in fields(DeliverySettings))


@dataclass(frozen=True, slots=True)
class Zone(DeliverySettings):
    """A sending zone. ``transport`` selects which of the transport sections applies."""

    connections: int = number(100, 1, 10_000)
    connections_per_domain: int = number(20, 1, 10_000)
    rate: Rate | None = None
    transport: str = choice("smtp", "lmtp", "pipe", "maildir", "python", "blackhole", "http", "dequeue")
    maildir: MaildirSettings = MaildirSettings()
    pipe: PipeSettings = PipeSettings()
    python: PythonSettings = PythonSettings()
    http: HttpSettings = HttpSettings()
    blackhole: BlackholeSettings = BlackholeSettings()
    bounce: BounceSettings = BounceSettings()
    sender_verp: bool = False
    destinations: tuple[DestinationSettings, ...] = field(default=(), metadata={"overrides": True})

    def item(self) -> DestinationSettings:
        """The base of an item of ``destinations``: the values of the zone."""
        return DestinationSettings(**{key: getattr(self, key) for key in DELIVERY_KEYS})

    def parts(self) -> tuple[tuple[str, DeliverySettings], ...]:
        """The settings of the zone and of its ``destinations``, each with its key in front of those in it."""
        items = ((f"destinations[{i}].", item) for i, item in enumerate(self.destinations))
        return (("", self), *items)


# ---- The destinations of a zone: the name at which mail for a domain waits, and its settings.

ALL = "*"  # the destination of all mail that the smarthosts of a zone get
CACHE_MAX = 10_000


class DestinationTable:
    """The settings of ``zone`` for each domain, from its ``destinations``; the first item that matches counts.

    The name of a destination is the domain. All mail for the smarthosts of the zone waits at ``*``, that for those
    of an item at ``*:`` and the item's first domain: a name that no change of the smarthosts changes (decision 68).
    """

    def __init__(self, zone: Zone) -> None:
        own = replace(zone, connections_per_domain=zone.connections) if zone.smarthost else zone
        self._own = own
        self.zones = (own, *(_merged(zone, item) for item in zone.destinations))
        self._items = zone.destinations
        self._names = (ALL, *(f"{ALL}:{item.domains[0]}" for item in self._items))
        self._by_domain: dict[str, int] = {}

    def name_of(self, domain: str) -> str:
        """The destination at which mail for ``domain`` waits."""
        if not self._items:
            return ALL if self._own.smarthost else domain
        number = self.number(domain)
        if not self.zones[number].smarthost:
            return domain
        return self._names[number]

    def settings(self, destination: str) -> Zone:
        """The zone with the settings for one of its destinations; its ``connections_per_domain`` is the limit."""
        return self.zones[self.number(destination)] if self._items else self._own

    def number(self, destination: str) -> int:
        """The place of its settings in ``zones``."""
        if not self._items:
            return 0
        found = self._by_domain.get(destination)
        if found is None:
            if len(self._by_domain) >= CACHE_MAX:
                self._by_domain.clear()
            found = self._by_domain[destination] = self._find(destination)
        return found

    def _find(self, destination: str) -> int:
        if destination.startswith(ALL):
            return self._names.index(destination) if destination in self._names else 0
        matching = (number for number, item in enumerate(self._items, 1) if item.matches(destination))
        return next(matching, 0)


def _merged(zone: Zone, item: DestinationSettings) -> Zone:
    connections = item.connections
    if connections is None:
        connections = zone.connections if item.smarthost else zone.connections_per_domain
    own = {key: getattr(item, key) for key in DELIVERY_KEYS}
    return replace(zone, connections_per_domain=connections, **own)
