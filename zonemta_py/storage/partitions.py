"""The storage that several relays share, and the choice of a relay's partition in it (decision 52).

Each relay has a partition of its own, named after its machine, and renews its lease. No other relay reads
or writes there while the lease lasts; a write by a relay that has lost it is refused.
"""

import logging
import socket
from contextlib import suppress
from threading import Event
from typing import Protocol

from zonemta_py.config.schema import SharedStorageSettings
from zonemta_py.core.errors import QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store
from zonemta_py.storage.lease import has_ended

log = logging.getLogger(__name__)

RETRY_S = 0.5  # between two attempts to acquire a lease that will expire
SLACK_S = 5.0  # added to the lease for clock skew and the delay of the server
NAMES_MAX = 100  # tried by a relay whose own partition is being delivered by another

MAIL_PREFIXES = (
    keys.MESSAGE,
    keys.OUTBOX,
    keys.DIGEST,
)  # a partition with a key under one of these has mail or events


class SharedStorage(Protocol):
    """Redis or a bucket, with the partitions in it. Every call blocks; LocalError when the server fails."""

    def open(self, name: str) -> Store:
        """Open a partition, new or not. Raises QueueLocked while another relay has its lease."""

    def orphans(self) -> list[str]:
        """Return the names of partitions with mail or events and without a lease; unlike notifications, all of them."""

    def wait_for_notification(self, wait_s: float) -> str | None:
        """Return the name of a partition that was released with mail in it, or None after ``wait_s``.

        A hint: notifications can be lost, late, or delivered twice.
        """

    def close(self) -> None:
        """Disconnect. No call follows."""


def partition_name(settings: SharedStorageSettings) -> str:
    """Return the name of this relay's own partition."""
    return settings.name or socket.getfqdn()


def open_own(storage: SharedStorage, settings: SharedStorageSettings) -> Store:
    """Open this relay's partition.

    A lease held by a dead process of this machine is waited for: its mail and its submission keys are in
    that partition. Raises QueueLocked when another process has it, LocalError when the server fails.
    """
    name, pause = partition_name(settings), Event()
    for attempt in range(int((settings.lease + SLACK_S) / RETRY_S)):
        try:
            return storage.open(name)
        except QueueLocked as exc:
            if not has_ended(exc.holder):
                raise
            if attempt == 0:
                log.warning("%s, which has ended: waiting until its lease expires", exc)
        pause.wait(RETRY_S)
    return storage.open(name)


def open_own_or_standby(storage: SharedStorage, settings: SharedStorageSettings) -> Store:
    """Like ``open_own``; while another relay delivers that partition, open a standby (``NAME-2`` …).

    Raises QueueLocked when every name is in use.
    """
    name = partition_name(settings)
    with suppress(QueueLocked):
        return open_own(storage, settings)
    for number in range(2, NAMES_MAX):
        chosen = f"{name}-{number}"
        try:
            store = storage.open(chosen)
        except QueueLocked:
            continue
        log.warning(
            "queue.shared.name: partition '%s' is in use, '%s' is used instead; what an operator has suspended "
            "in '%s' is not suspended there: see zonemta suspend --list", name, chosen, name,
        )  # fmt: skip
        return store
    raise QueueLocked(
        f"queue.shared.name: {name} and its standby names up to {name}-{NAMES_MAX - 1} are in use"
    )
