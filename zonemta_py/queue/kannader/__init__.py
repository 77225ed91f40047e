"""Kannader's storage functions as a view of the queue."""

from zonemta_py.queue.kannader.enqueue import Enqueuer
from zonemta_py.queue.kannader.items import (
    Damaged,
    InflightMail,
    MailMetadata,
    PendingCleanupMail,
    QueuedMail,
    ScheduleInfo,
)
from zonemta_py.queue.kannader.storage import Storage

__all__ = [
    "Damaged", "Enqueuer", "InflightMail", "MailMetadata", "PendingCleanupMail", "QueuedMail", "ScheduleInfo", "Storage",
]  # fmt: skip
