"""Messages are scanned while they come in: what the answer of an rspamd means, and who is asked. Without aiohttp.

Source: rspamd's protocol, https://docs.rspamd.com/developers/protocol.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from zonemta_py.config.schema import Config, ScanSettings
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format.records import Origin

REASON_MAX = 200  # characters of the scanner's own reply
UNAVAILABLE = "451 4.7.1 The message cannot be scanned now, try again later"


class ScanVerdict(NamedTuple):
    """The verdict on a message: refused with the reply ``refusal``, or accepted with more header ``fields``.

    ``hold``: why it is held, in the event; empty when it is not.
    """

    refusal: str = ""
    fields: bytes = b""
    hold: str = ""


ACCEPT = ScanVerdict()


class ScannedEnvelope(NamedTuple):
    """The envelope, which a scanner gets with the data."""

    message: str
    sender: str
    recipients: tuple[str, ...]
    origin: Origin
    hostname: str


class Scan(Protocol):
    """One message under scan."""

    @property
    def verdict(self) -> ScanVerdict:
        """The verdict on the message, once ``finish`` is done."""

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next bytes; the future, if any, must be done before the next call."""

    def finish(self) -> CommitFuture:
        """The message is complete; when the future is done, there is a verdict."""

    def abort(self) -> None:
        """The message is not accepted; may be called at any time."""


class MessageScanner:
    """The scanner of one process; ``begin`` is None for messages that are not scanned. ``connect`` makes its client, when it is needed."""

    def __init__(self, config: Config, connect: "Callable[[], ScanClient]") -> None:
        self._connect = connect
        self._client: ScanClient | None = None
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use the configuration of a reload for messages that begin from now on."""
        self._settings = config.intake.scan
        self._exempt = frozenset(name for name, each in config.tenants.items() if not each.scan)
        self.is_on = self._settings.rspamd is not None  # any message is scanned; asked of each

    def begin(self, envelope: ScannedEnvelope) -> Scan | None:
        """Scan a message."""
        if not self.is_on or envelope.origin.tenant in self._exempt:
            return None
        if self._client is None:
            self._client = self._connect()
        return self._client.begin(self._settings, envelope)

    async def close(self) -> None:
        """Close idle connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None


class ScanClient(Protocol):
    """Connections to a scanner."""

    def begin(self, settings: ScanSettings, envelope: ScannedEnvelope) -> Scan:
        """Scan a message."""

    async def close(self) -> None:
        """Close the connections."""


def read_verdict(answer: object, settings: ScanSettings) -> ScanVerdict:
    """The verdict in the JSON of a scan. Raises ValueError for anything else."""
    action = answer.get("action") if isinstance(answer, Mapping) else None
    if not isinstance(answer, Mapping) or not isinstance(action, str):
        raise ValueError("the answer has no action")
    score = f"{_number(answer.get('score')):.2f} of {_number(answer.get('required_score')):.2f}"
    match action:
        case "no action" | "greylist":  # one that greylists says "soft reject"
            return ACCEPT
        case "reject" | "discard":
            return ScanVerdict("550 5.7.1 " + _reason(answer, "The message was rejected as spam"))
        case "soft reject":
            return ScanVerdict("451 4.7.1 " + _reason(answer, "Try again later"))
        case "quarantine":
            return ScanVerdict(hold=f"rspamd: {action}, {score}")
        case _ if settings.suspicious == "hold":  # add header, rewrite subject, and an operator's own
            return ScanVerdict(hold=f"rspamd: {action}, {score}")
    return ScanVerdict(fields=f"X-Spam: Yes\r\nX-Spam-Score: {score}\r\n".encode())


def _reason(answer: Mapping[str, object], default: str) -> str:
    messages = answer.get("messages")
    text = messages.get("smtp_message") if isinstance(messages, Mapping) else None
    if not isinstance(text, str):
        return default
    printable = "".join(c for c in text if " " <= c <= "~")[:REASON_MAX].strip()
    return printable or default


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def unavailable(settings: ScanSettings) -> ScanVerdict:
    """The verdict without an answer."""
    return ScanVerdict(UNAVAILABLE) if settings.unavailable == "defer" else ACCEPT
