"""Every configuration key with its type, default and limits. Values are frozen. Zones: ``config.zones``.

``config/zonemta.yaml`` is this schema in YAML with a comment for each key; a test compares the two.
A class may name old keys in ``RENAMED`` (old key: dotted path of the new one); the loader accepts them
with a warning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar

from zonemta_py.config.endpoints import AdminAddress, HostPort, NameServer, Network
from zonemta_py.config.sending import PoolAddress, ProvidersSettings, ShapingSettings, WarmupSettings
from zonemta_py.config.tenants import ClientLimits, TenantSettings
from zonemta_py.config.values import (
    AUTO,
    DAY,
    MINUTE,
    Keep,
    ProcessCount,
    Seconds,
    Size,
    choice,
    hidden,
    number,
)
from zonemta_py.config.zones import Zone


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """An rspamd that scans each message before it is accepted; None: no scan."""

    rspamd: str | None = None  # URL
    timeout: Seconds = Seconds(5)
    unavailable: str = choice("accept", "defer")
    suspicious: str = choice("header", "hold")
    max_size: Size = Size(2 << 20)


HTTP_CONNECTIONS_MAX = 100  # of the admin listener


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS on a listener."""

    RENAMED: ClassVar[Mapping[str, str]] = {"certificate": "certificate_file", "key": "key_file"}

    mode: str = choice("none", "starttls", "implicit")
    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenerAuth:
    """AUTH on a listener, which offers it when ``users_file`` is set."""

    users_file: Path | None = None
    require_tls: bool = True


@dataclass(frozen=True, slots=True)
class SubmissionKey:
    """The places of the submission key, by which a client identifies a repeated submission."""

    envid_prefix: str | None = "submission-key-"
    headers: tuple[tuple[str, ...], ...] = (
        ("X-Submission-Key",),
        ("X-Listmonk-Campaign", "X-Listmonk-Subscriber"),
    )
    refuse_other_content: tuple[str, ...] = ("X-Submission-Key", "ENVID", "Idempotency-Key")
    window: Seconds = Seconds(DAY)


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """Header fields with options of a message (names, times, priority). They are removed from it.

    ``hold_max``: how long it may be held. ``unusable``: the treatment of a message with a value that cannot be used.
    """

    campaign: str | None = "X-Campaign"
    tags: str | None = "X-Tags"
    not_before: str | None = "X-Not-Before"
    expire: str | None = "X-Expire"
    priority: str | None = "X-Priority-Class"
    hold_max: Seconds = Seconds(30 * DAY)
    unusable: str = choice("ignore", "refuse")


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One address that accepts mail."""

    address: HostPort = HostPort("127.0.0.1", 2525)
    max_message_size: Size = Size(50 << 20)
    max_recipients: int = number(10_000, 1, 1_000_000)
    max_sessions: int = number(500)
    max_errors: int = number(20)
    max_hops: int = number(50)
    idle_timeout: Seconds = Seconds(5 * MINUTE)
    message_timeout: Seconds = Seconds(60 * MINUTE)
    senders: str = choice("tenants", "any")
    envelope_syntax: str = choice("strict", "relaxed")
    line_endings: str = choice("reject", "normalise")
    received: str = choice("full", "short")
    trusted_networks: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    proxies: tuple[Network, ...] = ()
    submission_key: SubmissionKey = SubmissionKey()
    options: MessageOptions = MessageOptions()
    drop_headers: tuple[str, ...] = (
        "Bcc", "Content-Length", "Resent-Bcc", "Return-Path", "X-Submission-Key",
    )  # fmt: skip
    tls: ListenerTls = ListenerTls()
    auth: ListenerAuth = ListenerAuth()


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """Settings that all listeners share."""

    scan: ScanSettings = ScanSettings()


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """The queue of ``store: redis``."""

    url: str = "redis://127.0.0.1:6379/0"
    prefix: str = "zonemta"


@dataclass(frozen=True, slots=True)
class S3Settings:
    """The queue of ``store: s3``. Credentials come from the environment or ~/.aws, as for other AWS clients."""

    bucket: str | None = None
    prefix: str = "zonemta"
    endpoint: str | None = None
    region: str = "us-east-1"
    notices: str | None = None  # URL of an SQS queue


@dataclass(frozen=True, slots=True)
class SharedStorageSettings:
    """Cooperation of several relays on one storage (redis, s3). ``name`` is this relay's partition."""

    name: str | None = None
    lease: Seconds = Seconds(30)
    poll: Seconds = Seconds(5)
    take_over: bool = True


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The store of accepted mail, and its durability."""

    directory: Path = Path("var/queue")
    store: str = choice("leveldb", "memory", "filesystem", "redis", "s3")
    durability: str = choice("sync", "none")
    min_free_disk: Size = Size(1 << 30)
    ready_window: int = number(50_000, 100, 10_000_000)
    body_cache: Size = Size(32 << 20)
    segments_from: Size | None = Size(32 << 10)
    poison_after: int = number(3, 1, 1_000_000)
    redis: RedisSettings = RedisSettings()
    s3: S3Settings = S3Settings()
    shared: SharedStorageSettings = SharedStorageSettings()


@dataclass(frozen=True, slots=True)
class Route:
    """One routing rule: exactly one condition, and the zone of the mail that matches."""

    header: str | None = None
    sender_domain: str | None = None
    recipient_domain: str | None = None
    source: Network | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Extensions that are used with a peer if it offers them."""

    pipelining: bool = True
    starttls: bool = True


@dataclass(frozen=True, slots=True)
class DkimKey:
    """One signing key, for authors (From) in ``domain`` and its subdomains."""

    domain: str | None = None
    selector: str | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Dkim:
    """Signatures of outgoing mail, relaxed/relaxed."""

    keys: tuple[DkimKey, ...] = ()
    headers: tuple[str, ...] = (
        "from", "sender", "reply-to", "subject", "date", "message-id", "to", "cc", "mime-version",
        "content-type", "content-transfer-encoding", "in-reply-to", "references", "list-id",
        "list-unsubscribe", "list-unsubscribe-post", "list-subscribe", "list-post", "list-owner",
        "list-archive", "feedback-id",
    )  # fmt: skip
    oversign: tuple[str, ...] = ("from", "sender", "reply-to", "subject", "date", "to", "cc", "message-id", "mime-version", "content-type")  # fmt: skip
    expire: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Resolver:
    """DNS look-ups. ``nameservers`` None: those of the system."""

    nameservers: tuple[NameServer, ...] | None = None
    timeout: Seconds = Seconds(5)


@dataclass(frozen=True, slots=True)
class Rotate:
    """Limits of a segment of the event log; it is sealed when it reaches one."""

    size: Size = Size(64 << 20)
    age: Seconds = Seconds(MINUTE)


@dataclass(frozen=True, slots=True)
class Events:
    """The directory of the event log, and how long its segments are kept."""

    directory: Path = Path("var/events")
    rotate: Rotate = Rotate()
    keep: Keep | None = None


@dataclass(frozen=True, slots=True)
class AdminTls:
    """HTTPS on the admin listener, when both are set."""

    certificate_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Admin:
    """The HTTP listener: health, metrics, the API, the page, mail. No ``address``: it is not open.

    ``mail_without_token``: what comes from this machine may send mail without one.
    """

    address: tuple[AdminAddress, ...] = (AdminAddress("127.0.0.1", 8125),)
    token_file: Path | None = None
    tokens_file: Path | None = None
    tls: AdminTls = AdminTls()
    mail: bool = False
    mail_without_token: bool = False
    metrics: bool = True
    api: bool = True
    page: bool = True


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log of all processes. ``outcomes``: events that have a line there."""

    level: str = choice("info", "debug", "warning", "error")
    format: str = choice("text", "json", "postfix")
    destination: str = choice("stderr", "journald", "syslog")
    outcomes: tuple[str, ...] = ("bounced", "deferred")

    def target(self, level: str | None = None) -> str:
        """The target of the log as a text for another process; ``level`` instead of the configured one."""
        return ",".join((level or self.level, self.format, self.destination))


@dataclass(frozen=True, slots=True)
class ClassifySettings:
    """``file``: rules for the class of a reply, with precedence over the shipped ones (``config/classify.yaml``)."""

    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Processes:
    """The numbers of processes that receive and send; AUTO depends on the number of cores."""

    receivers: ProcessCount = AUTO
    senders: ProcessCount = AUTO


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration. ``config.load`` returns it checked."""

    hostname: str | None = None
    shutdown_grace: Seconds = Seconds(30)
    allow_private_destinations: bool = False
    zone_removed: str = choice("refuse", "default")
    listeners: tuple[ListenerSettings, ...] = (ListenerSettings(),)
    intake: IntakeSettings = IntakeSettings()
    queue: QueueSettings = QueueSettings()
    zones: dict[str, Zone] = field(default_factory=lambda: {"default": Zone()})
    tenants: dict[str, TenantSettings] = field(default_factory=dict)
    limits: ClientLimits = ClientLimits()
    policies: tuple[str, ...] = ()
    routing: tuple[Route, ...] = (Route(header="X-Sending-Zone"),)
    pools: dict[str, tuple[PoolAddress, ...]] = field(
        default_factory=lambda: {"default": (PoolAddress(),)}
    )
    providers: ProvidersSettings = ProvidersSettings()
    shaping: ShapingSettings = ShapingSettings()
    warmup: WarmupSettings = WarmupSettings()
    peers: dict[str, PeerSettings] = field(default_factory=dict)
    dkim: Dkim = Dkim()
    resolver: Resolver = Resolver()
    events: Events = Events()
    classify: ClassifySettings = ClassifySettings()
    admin: Admin = Admin()
    log: LogSettings = LogSettings()
    processes: Processes = Processes()
    text: str = hidden("")  # of the file: the other processes parse it again
    included: tuple[tuple[str, str], ...] = hidden(())  # path and text of the files that it includes
    path: str = hidden("")  # of the file
    deprecated: tuple[str, ...] = hidden(())  # a warning for each old key in the file
