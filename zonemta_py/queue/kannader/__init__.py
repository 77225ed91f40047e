"""Kannader's storage functions as a view of the queue."""

from zonemta_py.queue.kannader.storage import (
    Damaged,
    Enqueuer,
    InflightMail,
    MailMetadata,
    PendingCleanupMail,
    QueuedMail,
    ScheduleInfo,
    Storage,
)

__all__ = [
    "Damaged", "Enqueuer", "InflightMail", "MailMetadata", "PendingCleanupMail", "QueuedMail", "ScheduleInfo", "Storage",
]  # fmt: skip
