"""What a receiving server got: its messages, and its counts."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """One message as it arrived. ``data`` has its dots unstuffed; it is empty when not kept."""

    sender: str
    recipients: list[str]
    data: bytes
    helo: str
    peer: str
    local: str
    parameters: str = ""


@dataclass(slots=True)
class Tally:
    """What a sink has seen. ``by_recipient`` counts deliveries, to find losses and repeats."""

    sessions: int = 0
    messages: int = 0
    recipients: int = 0
    octets: int = 0
    refused: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    by_recipient: Counter[str] = field(default_factory=Counter)
    by_domain: Counter[str] = field(default_factory=Counter)
    by_peer: Counter[str] = field(default_factory=Counter)

    def as_row(self) -> dict[str, object]:
        """For programs."""
        return {
            "sessions": self.sessions,
            "messages": self.messages,
            "recipients": self.recipients,
            "unique_recipients": len(self.by_recipient),
            "repeated": sum(count - 1 for count in self.by_recipient.values()),
            "octets": self.octets,
            "refused": self.refused,
            "seconds": round(self.last_s - self.first_s, 3),
            "by_domain": dict(self.by_domain),
            "by_peer": dict(self.by_peer),
        }
