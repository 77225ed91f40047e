"""Partitions of a storage that several relays share: the lease of one, and the choice of a relay's own (decision 52).

Each relay has a partition of its own, named after its machine. A lease proves that one relay alone uses it::

    free ─ acquire ─▶ held, renewed three times in its length ─ release ─▶ free
                         └─ another token, or none, at a renewal or a write ─▶ lost

Invariants:

- The server itself refuses a write of a relay that has lost the lease: Redis by its token, S3 by the number of the batch. ``check``
  only fails earlier. So two relays never change one partition, however wrong their clocks are.
- ``lost`` is final for the object; the partition must be opened again.
- When the server cannot be asked, the lease stays as it is: it expires by the clock of the server.
- A token has host, process, its start, and 64 random bits. So a relay recognises a lease of a process of its own machine that has
  ended (``has_ended``), and waits for its end instead of using another partition.
- A partition that is released with mail in it notifies the other relays; ``orphans`` finds it without the notification.

Callers: ``RedisStore`` and ``S3Store`` have a ``PartitionLease`` with a ``LeaseBackend``; ``storage.open`` calls ``open_own`` and
``open_own_or_standby``; ``relay.takeover`` opens the partitions of others.

Example: relay ``mx1`` is killed and starts again. Its own lease is still held by its old process, which has ended, so ``open_own``
waits at most the length of the lease; a relay ``mx2`` that finds the partition free first delivers its mail, and ``mx1`` gets ``mx1-2``.

Source: proc(5) for the start of a process. Background: Gray and Cheriton, "Leases", 1989.
"""

import logging
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Protocol

from zonemta_py.config.schema import SharedStorageSettings
from zonemta_py.core.errors import LocalError, QueueLocked, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


# ---- The storage with its partitions, and the choice of a relay's own.

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


# ---- The lease of one partition.

RENEWALS = 3  # in the time of one lease
STAT_START = 19  # the field of /proc/PID/stat with the start, after the name of the program

# Tokens of this process that the server could not be asked to delete, by label. With one, the lease may
# still be there, and then nothing else writes with it.
_unreleased: dict[str, str] = {}


class LeaseBackend(Protocol):
    """The lease on a server. Every call blocks, and raises LocalError when the server cannot be asked."""

    def try_acquire(self, token: str, previous: str = "") -> str | None:
        """Store ``token``. Returns None, or the token of the relay that has the lease ("" when unknown).

        A lease with the token ``previous`` is replaced, as one that has expired.
        """

    def holder(self) -> str | None:
        """Return the token of the lease; None when no relay has it."""

    def renew(self, token: str) -> bool:
        """Extend the lease; False when it has another token, or none."""

    def release(self, token: str, *, mail: bool) -> None:
        """End the lease, if it has ``token``. With ``mail`` left in the partition, notify other relays."""


class PartitionLease:
    """The lease of one partition; ``label`` names it in messages. ``lost`` is final."""

    def __init__(self, label: str, lease_s: float, backend: LeaseBackend) -> None:
        self.token = _new_token()
        self.lost = False
        self._loss = ""
        self._label = label
        self._interval_s = lease_s / RENEWALS
        self._backend = backend
        self._losing = Lock()
        self._stopping = Event()
        self._thread: Thread | None = None

    def acquire(self) -> None:
        """Acquire the lease, and renew it in the background. Raises QueueLocked, LocalError."""
        other = self._backend.try_acquire(self.token, _unreleased.get(self._label, ""))
        _unreleased.pop(self._label, None)
        if other is not None:
            holder = other.rpartition(":")[0]
            raise QueueLocked(f"{self._label}: in use by {holder or 'another relay'}", other)
        self._thread = Thread(target=self._keep_renewing, name=f"renew {self._label}", daemon=True)
        self._thread.start()

    def _keep_renewing(self) -> None:
        while not self.lost and not self._stopping.wait(self._interval_s):
            self.renew()

    def renew(self) -> None:
        """Extend the lease, or mark it lost. When the server cannot be asked it stays as it is."""
        try:
            if not self._backend.renew(self.token):
                self.mark_lost()
        except LocalError as exc:
            log.error("%s: the lease could not be renewed: %s", self._label, exc)

    def mark_lost(self) -> None:
        """Note that the lease has another token, or none: every later ``check`` raises. Logged once."""
        with self._losing:
            if not self.lost:
                self._loss = f"{self._label}: the lease is lost{self._reason()}"
                self.lost = True
                log.critical("%s", self._loss)

    def _reason(self) -> str:
        try:
            holder = self._backend.holder()
        except LocalError:
            return ""
        if holder is None:
            return ", and no relay has it: it has expired, or the server has lost its data"
        return ", another relay has it"

    def check(self) -> None:
        """Raise QueueUnavailable when the lease is lost."""
        if self.lost:
            raise QueueUnavailable(self._loss)

    def stop_renewing(self) -> None:
        """End the background thread; the lease then expires."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def release(self, *, mail: bool) -> None:
        """Give the lease back, unless it is lost. With ``mail`` left, other relays are notified."""
        self.stop_renewing()
        if self.lost:
            return
        try:
            self._backend.release(self.token, mail=mail)
        except LocalError as exc:
            _unreleased[self._label] = self.token
            log.error("%s: the lease is not released and has to expire: %s", self._label, exc)


def _new_token() -> str:
    """Host, process, when that began, and 64 random bits: unique, and readable for an operator."""
    pid = str(os.getpid())
    return f"{socket.getfqdn()}:{pid}:{_began(pid)}-{secrets.token_hex(8)}"


def has_ended(token: str) -> bool:
    """Return whether ``token`` is that of a process of this machine that has ended.

    Its number alone does not tell: in a container the relay may be process 1 each time. Tokens of earlier
    versions do not say when their process began, and this process has none of them.
    """
    host, _, rest = token.partition(":")
    pid, _, unique = rest.partition(":")
    if host != socket.getfqdn() or not pid.isdigit():
        return False
    began, dash, _ = unique.rpartition("-")
    if dash:
        return began != _began(pid)
    return pid == str(os.getpid()) or not Path(f"/proc/{pid}").exists()


def _began(pid: str) -> str:
    """The start of a process: the boot of the machine, and clock ticks since. Empty without such a process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"{boot}.{fields[STAT_START]}"
    except (OSError, IndexError):
        return ""
