"""The items of ``queue.kannader``, and how they map to the queue's records."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from zonemta_py.core import clock
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import RecipientRecord
from zonemta_py.queue.submitter_queues import QueuedRecipient


@dataclass(frozen=True, slots=True)
class MailMetadata:
    """``from_`` is None for the null sender; ``zone``: Kannader leaves such data to its user."""

    from_: str | None
    to: str
    zone: str = "default"


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """The times of the next and of the last attempt, with time zone."""

    at: datetime
    last_attempt: datetime | None = None

    def last_interval(self) -> timedelta | None:
        """The time from the last attempt to the next."""
        return self.at - self.last_attempt if self.last_attempt else None


@dataclass(frozen=True, slots=True)
class QueuedMail:
    """A queued item. ``id`` never changes."""

    id: str
    schedule: ScheduleInfo
    zone: str
    address: str


@dataclass(frozen=True, slots=True)
class InflightMail:
    """A lease. ``epoch`` (boot, number) identifies the lease among those of the same item."""

    id: str
    zone: str
    address: str
    epoch: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PendingCleanupMail:
    """An ended item; its content may still be on disk."""

    id: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """An item that cannot be read."""

    error: Exception
    id: str | None


def id_of(message: str, index: int) -> str:
    """The id of one item."""
    return f"{message}.{index}"


def recipient_at(key: bytes, record: RecipientRecord) -> QueuedRecipient:
    """The recipient at ``key``."""
    zone, message, address = keys.parse_recipient(key)
    return QueuedRecipient(key, zone, message, address, record)


def schedule_of(message: str, record: RecipientRecord) -> ScheduleInfo:
    """The schedule in a record."""
    at_ms = record.due_ms or keys.created_ms(message)
    return ScheduleInfo(clock.utc(at_ms), clock.utc(record.last_ms) if record.last_ms else None)


def to_ms(time: datetime | None) -> int:
    """Unix ms; 0 for no time."""
    return round(time.timestamp() * 1000) if time else 0
