"""Settings of a zone: its limits, transport, retries, reports and time limits. Values are frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from zonemta_py.config.endpoints import Smarthost
from zonemta_py.config.units import (
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
    """``transport: python``."""

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
    """When a deferred recipient is tried again, and when the relay gives up.

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
    """How long the relay waits for a peer in each step. Source: RFC 5321 section 4.5.3.2."""

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
    """How mail is sent: what a zone may set for some destinations differently."""

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
        """Whether these are the settings for mail to ``domain``, which is normalised."""
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
        """What an item of ``destinations`` starts from: the values of the zone."""
        return DestinationSettings(**{key: getattr(self, key) for key in DELIVERY_KEYS})

    def parts(self) -> tuple[tuple[str, DeliverySettings], ...]:
        """The settings of the zone and of its ``destinations``, each with its key in front of those in it."""
        items = ((f"destinations[{i}].", item) for i, item in enumerate(self.destinations))
        return (("", self), *items)
