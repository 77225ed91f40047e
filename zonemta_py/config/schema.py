"""Every configuration key, its type, its default and its limits. Values are frozen.

``config/zonemta.yaml`` is this file in YAML, with a comment for each key; a test keeps the two
together. A field made by ``choice`` knows values that later versions bring, and refuses them with a word.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

from zonemta_py.config.deliveries import (
    BlackholeDelivery,
    HttpDelivery,
    MaildirDelivery,
    PipeDelivery,
    PythonDelivery,
)
from zonemta_py.config.fields import DAY, HOUR, MINUTE, choice, hidden, number
from zonemta_py.config.units import HostPort, NameServer, ProcessCount, Rate, Seconds, Size

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS on a listener."""

    mode: str = choice("none", "starttls", "implicit")
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenerAuth:
    """AUTH on a listener; offered when there is a users file."""

    users_file: Path | None = None
    require_tls: bool = True


@dataclass(frozen=True, slots=True)
class SubmissionKey:
    """How a client names a submission, so that its repeat is not a second message."""

    envid_prefix: str | None = "submission-key-"
    headers: tuple[tuple[str, ...], ...] = (
        ("X-Submission-Key",),
        ("X-Listmonk-Campaign", "X-Listmonk-Subscriber"),
    )
    window: Seconds = Seconds(DAY)


@dataclass(frozen=True, slots=True)
class Listener:
    """One address that takes mail."""

    address: HostPort = HostPort("127.0.0.1", 2525)
    max_message_size: Size = Size(50 << 20)
    max_recipients: int = number(10_000, 1, 1_000_000)
    max_sessions: int = number(500)
    max_errors: int = number(20)
    max_hops: int = number(50)
    idle_timeout: Seconds = Seconds(5 * MINUTE)
    message_timeout: Seconds = Seconds(60 * MINUTE)
    trusted_networks: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    proxies: tuple[Network, ...] = ()
    submission_key: SubmissionKey = SubmissionKey()
    tls: ListenerTls = ListenerTls()
    auth: ListenerAuth = ListenerAuth()


@dataclass(frozen=True, slots=True)
class RedisQueue:
    """Where ``store: redis`` keeps the queue."""

    url: str = "redis://127.0.0.1:6379/0"
    prefix: str = "zonemta"


@dataclass(frozen=True, slots=True)
class ObjectQueue:
    """Where ``store: s3`` keeps the queue. Credentials are found as every AWS client finds them."""

    bucket: str | None = None
    prefix: str = "zonemta"
    endpoint: str | None = None
    region: str = "us-east-1"
    notices: str | None = None  # URL of an SQS queue


@dataclass(frozen=True, slots=True)
class SharedQueue:
    """How relays get along whose queues are in one place (redis, s3)."""

    name: str | None = None
    lease: Seconds = Seconds(30)
    poll: Seconds = Seconds(5)
    take_over: bool = True


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Where accepted mail is kept, and how surely."""

    directory: Path = Path("var/queue")
    store: str = choice("leveldb", "memory", "filesystem", "redis", "s3")
    durability: str = choice("sync", "none")
    min_free_disk: Size = Size(1 << 30)
    ready_window: int = number(50_000, 100, 10_000_000)
    body_cache: Size = Size(32 << 20)
    poison_after: int = number(3, 1, 1_000_000)
    redis: RedisQueue = RedisQueue()
    s3: ObjectQueue = ObjectQueue()
    shared: SharedQueue = SharedQueue()


@dataclass(frozen=True, slots=True)
class Priorities:
    """Delays by the message's Priority field; an empty list: as ``normal``."""

    urgent: tuple[Seconds, ...] = ()
    normal: tuple[Seconds, ...] = tuple(Seconds(s) for s in (900, 1800, HOUR, 2 * HOUR, 4 * HOUR))
    nonurgent: tuple[Seconds, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """When a deferred recipient is tried again, and when no more."""

    policy: str = choice("ladder", "exponential", "quadratic", "priority", "function", "backoff")
    delays: tuple[Seconds, ...] = tuple(
        Seconds(s) for s in (300, 420, 480, 1500, 4500, 2 * HOUR, 4 * HOUR)
    )
    first: Seconds = Seconds(5 * MINUTE)
    factor: int = number(2, 1, 100)
    longest: Seconds = Seconds(4 * HOUR)
    skip: int = number(20, 1, 1000)
    priorities: Priorities = Priorities()
    function: str | None = None
    jitter: int = number(10, 0, 100)
    give_up_after: Seconds = Seconds(2 * DAY)
    warn_after: Seconds | None = Seconds(4 * HOUR)


@dataclass(frozen=True, slots=True)
class Bounce:
    """What the sender hears about recipients that failed. A trailing underscore is not in the key."""

    format: str = choice("rfc3464", "qsbmf")
    aggregate: str = choice("attempt", "message")
    return_: str = choice("full", "headers")
    max_bytes: Size = Size(64 << 10)
    double_bounce_to: str | None = None
    zone: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a peer may take. Source: RFC 5321 section 4.5.3.2."""

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
class Zone:
    """A sending pool: its addresses, limits and routes."""

    pool: str = "default"
    connections: int = number(100, 1, 10_000)
    connections_per_domain: int = number(20, 1, 10_000)
    messages_per_connection: int = number(100)
    recipients_per_transaction: int = number(100, 1, 10_000)
    rate: Rate | None = None
    transport: str = choice("smtp", "lmtp", "pipe", "maildir", "python", "blackhole", "http", "dequeue")
    maildir: MaildirDelivery = MaildirDelivery()
    pipe: PipeDelivery = PipeDelivery()
    python: PythonDelivery = PythonDelivery()
    http: HttpDelivery = HttpDelivery()
    blackhole: BlackholeDelivery = BlackholeDelivery()
    smarthost: HostPort | None = None
    smarthost_auth: SmarthostAuth = SmarthostAuth()
    port: int = number(25, 1, 65535)
    tls: str = choice("opportunistic", "off", "required", later=("dane", "mta-sts"))
    retry: Retry = Retry()
    bounce: Bounce = Bounce()
    sender_verp: bool = False
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class Route:
    """One routing rule: exactly one condition, and the zone it leads to."""

    header: str | None = None
    sender_domain: str | None = None
    recipient_domain: str | None = None
    source: Network | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """One address that connections leave from."""

    address: str | None = None
    ehlo: str | None = None
    weight: int = number(1, 0, 1_000_000)


@dataclass(frozen=True, slots=True)
class DkimKey:
    """One key: it signs for authors (From) in its domain and below."""

    domain: str | None = None
    selector: str | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Dkim:
    """Signatures on the way out, relaxed/relaxed."""

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
    """Which name servers answer; none: the system's."""

    nameservers: tuple[NameServer, ...] | None = None
    timeout: Seconds = Seconds(5)


@dataclass(frozen=True, slots=True)
class Rotate:
    """When a segment of the event log is sealed."""

    size: Size = Size(64 << 20)
    age: Seconds = Seconds(MINUTE)


@dataclass(frozen=True, slots=True)
class Events:
    """Where the event log is written."""

    directory: Path = Path("var/events")
    rotate: Rotate = Rotate()


@dataclass(frozen=True, slots=True)
class Admin:
    """The HTTP listener; it is there when ``mail`` is true."""

    address: HostPort = HostPort("127.0.0.1", 8125)
    token_file: Path | None = None
    mail: bool = False


@dataclass(frozen=True, slots=True)
class Processes:
    """How many processes share the work; AUTO leaves it to the number of cores."""

    receivers: ProcessCount = ProcessCount(0)
    senders: ProcessCount = ProcessCount(0)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration, checked."""

    hostname: str | None = None
    shutdown_grace: Seconds = Seconds(30)
    allow_private_destinations: bool = False
    zone_removed: str = choice("refuse", "default")
    listeners: tuple[Listener, ...] = (Listener(),)
    queue: QueueSettings = QueueSettings()
    zones: dict[str, Zone] = field(default_factory=lambda: {"default": Zone()})
    policies: tuple[str, ...] = ()
    routing: tuple[Route, ...] = (Route(header="X-Sending-Zone"),)
    pools: dict[str, tuple[PoolAddress, ...]] = field(
        default_factory=lambda: {"default": (PoolAddress(),)}
    )
    dkim: Dkim = Dkim()
    resolver: Resolver = Resolver()
    events: Events = Events()
    admin: Admin = Admin()
    processes: Processes = Processes()
    text: str = hidden("")  # what it was read from, for the other processes
    path: str = hidden("")
