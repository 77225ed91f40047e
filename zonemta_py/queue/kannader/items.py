"""What the storage of ``queue.kannader`` hands out, and how it maps to the queue's records."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from zonemta_py.core import clock
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Waiting
from zonemta_py.queue.submitter_queues import QueuedRecipient


@dataclass(frozen=True, slots=True)
class MailMetadata:
    """``from_`` is None for the null sender; ``zone`` is what Kannader leaves to its user."""

    from_: str | None
    to: str
    zone: str = "default"


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """When to try next, and when it was tried last. Times are aware."""

    at: datetime
    last_attempt: datetime | None = None

    def last_interval(self) -> timedelta | None:
        """From the last attempt to the next."""
        return self.at - self.last_attempt if self.last_attempt else None


@dataclass(frozen=True, slots=True)
class QueuedMail:
    """A mail that waits. ``id`` stays the same for life."""

    id: str
    schedule: ScheduleInfo
    zone: str
    address: str


@dataclass(frozen=True, slots=True)
class InflightMail:
    """A lease. ``epoch`` (boot, number) tells it from every other lease of the same mail."""

    id: str
    zone: str
    address: str
    epoch: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PendingCleanupMail:
    """A mail that is done with; its content may still be there."""

    id: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """An item that cannot be read; the others are listed all the same."""

    error: Exception
    id: str | None


def id_of(message: str, index: int) -> str:
    """The id of one mail."""
    return f"{message}.{index}"


def recipient_at(key: bytes, record: Waiting) -> QueuedRecipient:
    """The queue's word for a mail."""
    zone, message, address = keys.parse_recipient(key)
    return QueuedRecipient(key, zone, message, address, record)


def schedule_of(message: str, record: Waiting) -> ScheduleInfo:
    """The schedule in a record."""
    at_ms = record.due_ms or keys.created_ms(message)
    return ScheduleInfo(clock.utc(at_ms), clock.utc(record.last_ms) if record.last_ms else None)


def to_ms(time: datetime | None) -> int:
    """Unix ms; 0 for no time."""
    return round(time.timestamp() * 1000) if time else 0
