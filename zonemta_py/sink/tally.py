"""What a sink has received."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """A message as received. ``data`` is without dot-stuffing, and empty when messages are not kept."""

    sender: str
    recipients: list[str]
    data: bytes
    helo: str
    peer: str
    local: str
    parameters: str = ""


@dataclass(slots=True)
class Tally:
    """The counts of a sink. ``by_recipient`` counts deliveries, to find lost and repeated ones."""

    sessions: int = 0
    messages: int = 0
    recipients: int = 0
    size_bytes: int = 0  # of message data as on the wire, dot-stuffing included
    refused: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    by_recipient: Counter[str] = field(default_factory=Counter)
    by_domain: Counter[str] = field(default_factory=Counter)
    by_peer: Counter[str] = field(default_factory=Counter)

    def as_row(self) -> dict[str, object]:
        """The counts as a dictionary, for JSON. ``octets`` is the former name of ``bytes``."""
        return {
            "sessions": self.sessions,
            "messages": self.messages,
            "recipients": self.recipients,
            "unique_recipients": len(self.by_recipient),
            "repeated": sum(count - 1 for count in self.by_recipient.values()),
            "bytes": self.size_bytes,
            "octets": self.size_bytes,
            "refused": self.refused,
            "seconds": round(self.last_s - self.first_s, 3),
            "by_domain": dict(self.by_domain),
            "by_peer": dict(self.by_peer),
        }
