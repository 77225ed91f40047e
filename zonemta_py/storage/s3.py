"""The store in S3: a log of batches, a snapshot now and then, and bodies as objects of their own.

Objects of a partition::

    NAME/lease                the relay that has the partition (``S3Lease``)
    NAME/log/SEQ              one batch, 16 hex digits
    NAME/snapshot/SEQ         everything but bodies, after that batch
    NAME/body/BOOT/MESSAGE/NUMBER
                              a chunk, written before the batch that names it; BOOT is the first batch of its
                              writer, so that a relay that lost its lease cannot overwrite another's chunk

Life of a partition: lease acquired ─▶ snapshot and log read ─▶ first batch written ─▶ open ─▶ lease lost, or failed, or closed.

Invariants:

- A batch is one object that must not exist yet (If-None-Match): it is written completely or not at all, and of two relays that
  both believe to have the partition only one can write batch SEQ.
- An opening writes an empty batch first. The relay before it cannot continue, because its next number is taken. These first
  batches are never deleted, so the number stays taken.
- Numbers of the log are consecutive behind the snapshot; a gap is damage.
- Bodies are written before the batch that names them, and deleted after the batch that removes them. Those without a key are
  deleted at the next opening.
- A server that ignores the condition is refused at the opening (``_check_conditions``).

Callers: ``storage.open`` makes an ``S3SharedStorage``, which opens partitions; ``relay.takeover`` asks it for orphans.

Example: a relay opens a partition whose log ends at 0x2a; it writes the empty batch 0x2b. The relay before it, which was only slow,
tries to write 0x2b, gets 412, and marks its lease as lost.

Source: Amazon S3, "Conditional requests" and "Consistency model".
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.codec import from_json, pack, to_json, unpacker
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.remote import RemoteBodyStore
from zonemta_py.storage.s3_client import Conflict, S3Client, S3Object
from zonemta_py.storage.shared import PartitionLease

log = logging.getLogger(__name__)


# ---- One partition.

FORMAT = 1
SNAPSHOT_BYTES = 8 << 20  # of batches since the last snapshot; or its size, when that is larger
SNAPSHOT_BATCHES = 1000
PAGE_OBJECTS = 64  # of one request while loading
ATTEMPTS = 3


_unpack_batch = unpacker(tuple[int, str, list[tuple[bytes, bytes | None]]])  # format, token, operations
_unpack_snapshot = unpacker(tuple[int, list[tuple[bytes, bytes]]])


class S3Store(RemoteBodyStore):
    """One partition in S3. Raises QueueLocked, LocalError, QueueCorrupt."""

    def __init__(self, settings: QueueSettings, name: str) -> None:
        label, lease_s = f"S3 partition '{name}'", settings.shared.lease
        self._client = S3Client(settings.s3)
        lease = PartitionLease(label, lease_s, S3Lease(self._client, name, lease_s))
        s3 = settings.s3
        place = f"{s3.endpoint} {s3.bucket} {s3.prefix}"
        super().__init__(name, label, self._client.thread, lease, place)
        self._seq = 0
        self._boot = b""  # the number of this writer's first batch, in hex
        self._first: set[int] = set()  # first batches of all boots
        self._unread: set[int] = set()  # batches before the snapshot: first ones, or not deleted yet
        self._since_snapshot = [0, 0]  # batches and bytes
        self._snapshot_bytes = 0
        self._open()

    def _disconnect(self) -> None:
        self._client.close()

    def _path(self, *parts: str) -> str:
        return "/".join((self.name, *parts))

    def _log_path(self, seq: int) -> str:
        return self._path("log", f"{seq:016x}")

    # ---- opening

    def _load(self) -> None:
        self._read_snapshot()
        while True:
            self._read_log()
            try:
                self._append([])
                break
            except Conflict:
                continue  # the relay before this one wrote another batch
        self._first.add(self._seq)
        self._check_conditions()
        self._boot = f"{self._seq:016x}".encode()
        stored = set(self._client.paths(self._path("body/")))
        used = set(self._bodies(self.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))))
        self._client.delete(stored - used)

    def _check_conditions(self) -> None:
        """Raise LocalError unless the server refuses to write the first batch again."""
        try:
            self._client.put_new(self._log_path(self._seq), pack((FORMAT, "?", [])))
        except Conflict:
            return
        raise LocalError(
            f"{self._label}: this server ignores If-None-Match on writes, so two relays could have one partition"
        )

    def _read_snapshot(self) -> None:
        paths = self._client.paths(self._path("snapshot/"))
        if not paths:
            return
        found = self._client.get(paths[-1])
        if found is None:
            raise _damaged(paths[-1], "it is missing")
        with _naming(paths[-1]):
            version, items = _unpack_snapshot(found.data)
        _check_format(paths[-1], version)
        MemoryStore.write(self, items)
        self._seq = _seq_of(paths[-1])
        self._snapshot_bytes = len(found.data)

    def _read_log(self) -> None:
        newer = []
        for path in self._client.paths(self._path("log/")):
            seq = _seq_of(path)
            if seq <= self._seq:
                self._unread.add(seq)
            else:
                newer.append((seq, path))
        for seq, path, data in self._read_all(newer):
            if seq != self._seq + 1:
                raise _damaged(path, "the batch before it is missing")
            with _naming(path):
                version, _, ops = _unpack_batch(data)
            _check_format(path, version)
            MemoryStore.write(self, ops)
            self._seq = seq
            if not ops:
                self._first.add(seq)
            self._count(len(data))

    def _read_all(self, batches: list[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
        """Numbers, paths and contents; a page of objects is read concurrently."""
        for at in range(0, len(batches), PAGE_OBJECTS):
            page = batches[at : at + PAGE_OBJECTS]
            objects = self._client.get_all(path for _, path in page)
            for (seq, path), found in zip(page, objects, strict=True):
                if found is None:
                    raise _damaged(path, "it is missing")
                yield seq, path, found.data

    # ---- reading

    async def _read_chunk(self, key: bytes, reference: bytes) -> bytes | None:
        found = await self._client.fetch(self._body_path(key, reference))
        return found.data if found is not None else None

    def _body_path(self, key: bytes, boot: bytes) -> str:
        _, message, number = key.decode().split("/")
        return self._path("body", boot.decode(), message, number)

    def _bodies(self, found: Iterable[bytes]) -> Iterator[str]:
        """The objects of those keys that are chunks of this partition."""
        for key in found:
            boot = self._values.get(key) if keys.is_chunk(key) else None
            if boot is not None:
                yield self._body_path(key, boot)

    # ---- writing

    def _commit(self, batch: list[Op]) -> None:
        """Write the bodies, then the batch; then delete the bodies of removed chunks."""
        if not batch:
            return  # an empty batch is the first one of a boot
        try:
            self._write_bodies(batch)
            self._append(list(self._with_reference(batch, self._boot)))
        except Conflict:
            self._lease.mark_lost()
            self._lease.check()
        removed = list(self._bodies(key for key, value in batch if value is None))
        self._apply(batch, self._boot)
        if removed:
            self._client.delete_later(removed)
        self._snapshot_if_due()

    def _write_bodies(self, batch: list[Op]) -> None:
        bodies = {
            self._body_path(key, self._boot): value
            for key, value in batch
            if value is not None and keys.is_chunk(key)
        }
        if bodies:
            self._client.put_all(bodies)

    def _append(self, ops: list[Op]) -> None:
        """Write the next batch. Raises Conflict when another relay wrote one of that number."""
        data = pack((FORMAT, self._lease.token, ops))
        path = self._log_path(self._seq + 1)
        for _ in range(ATTEMPTS):
            try:
                self._client.put_new(path, data)
                break
            except Conflict:
                found = self._client.get(path)
                if found is None:
                    continue  # two requests of this relay met
                if found.data == data:
                    break  # this batch: its answer was lost, and the client sent it again
                raise
        else:
            raise LocalError(f"{self._label}: {path} cannot be written")
        self._seq += 1
        self._count(len(data))

    def _count(self, size_bytes: int) -> None:
        batches, total_bytes = self._since_snapshot
        self._since_snapshot = [batches + 1, total_bytes + size_bytes]

    # ---- snapshots

    def _snapshot_if_due(self) -> None:
        batches, size_bytes = self._since_snapshot
        due = batches >= SNAPSHOT_BATCHES or size_bytes >= max(SNAPSHOT_BYTES, self._snapshot_bytes)
        if due and not self._lease.lost:
            self._snapshot()

    def _snapshot(self) -> None:
        """Write everything but bodies; delete the batches that it contains, except first ones."""
        data = pack((FORMAT, list(self._values.items())))
        try:
            self._client.put(self._path("snapshot", f"{self._seq:016x}"), data)
            self._client.delete_later(self._outdated())
        except LocalError as exc:
            log.error("%s: no snapshot was written, the log continues: %s", self._label, exc)
            return
        self._since_snapshot, self._snapshot_bytes = [0, 0], len(data)

    def _outdated(self) -> list[str]:
        """The batches and snapshots before this one. Newer ones are another relay's, once the lease is lost."""
        for seq in self._unread:
            found = self._client.get(self._log_path(seq))
            if found is not None and not _unpack_batch(found.data)[2]:
                self._first.add(seq)
        self._unread.clear()
        batches = self._client.paths(self._path("log/"))
        snapshots = self._client.paths(self._path("snapshot/"))
        return [
            *(p for p in batches if _seq_of(p) <= self._seq and _seq_of(p) not in self._first),
            *(p for p in snapshots if _seq_of(p) < self._seq),
        ]


def _damaged(path: str, reason: object) -> LocalError:
    """The error for a damaged object. It is not QueueCorrupt: ``queue repair`` is for the stores of this machine."""
    return LocalError(
        f"s3: {path}: damaged ({reason}): restore this object from another version of it or from a backup of the "
        "bucket, or choose another queue.shared.name"
    )


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Name the object in errors of the decoder."""
    try:
        yield
    except QueueCorrupt as exc:
        raise _damaged(path, exc) from exc


def _seq_of(path: str) -> int:
    return int(path.rpartition("/")[2], 16)


def _check_format(path: str, version: int) -> None:
    if version != FORMAT:
        raise LocalError(f"{path}: version {version} is not known here")


# ---- The partitions of several relays in one bucket.


class S3SharedStorage:
    """The partitions of several relays in one bucket. Raises LocalError for a bucket that cannot be read."""

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._client = S3Client(settings.s3)
        self._receipts: dict[str, str] = {}  # of notifications, by partition
        try:
            self._client.directories()
        except LocalError:
            self._client.close()
            raise

    def open(self, name: str) -> S3Store:
        """Open a partition and delete the notification about it."""
        store = S3Store(self._settings, name)
        receipt = self._receipts.pop(name, None)
        try:
            if receipt is not None:
                self._client.delete_notification(receipt)
        except LocalError as exc:
            log.warning("the notification about partition '%s' will be repeated: %s", name, exc)
        return store

    def orphans(self) -> list[str]:
        """The partitions without a holder; that of a relay that died may turn out to be empty."""
        found = []
        for name in self._client.directories():
            lease = self._client.get(f"{name}/lease")
            try:
                if lease is not None and is_free(lease) and from_json(lease.data)["mail"]:
                    found.append(name)
            except (ValueError, KeyError, TypeError) as exc:
                log.error("s3: %s/lease is not a lease, the partition is ignored: %r", name, exc)
        return found

    def wait_for_notification(self, wait_s: float) -> str | None:
        received = self._client.receive_notification(wait_s)
        if received is None:
            return None
        name, self._receipts[name] = received
        return name

    def close(self) -> None:
        self._client.close()


# ---- The lease: one object, written on condition, whose age is measured by the server's clock.

SLACK_S = 2  # the server's clock shows whole seconds


class S3Lease:
    """The lease of the partition ``name``."""

    def __init__(self, client: S3Client, name: str, lease_s: float) -> None:
        self._client = client
        self._name = name
        self._path = f"{name}/lease"
        self._lease_s = lease_s
        self._etag = ""  # the version that this relay wrote

    def try_acquire(self, token: str, previous: str = "") -> str | None:
        """Acquire the lease. Raises LocalError, also for an object that is not a lease."""
        found = self._client.get(self._path)
        try:
            if found is not None and not is_free(found):
                holder = _token_of(found)
                if holder != previous:
                    return holder
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc
        if self._write(self._data(token), found.etag if found is not None else None):
            return None
        return ""  # another relay was faster

    def holder(self) -> str | None:
        found = self._client.get(self._path)
        try:
            return _token_of(found) if found is not None and not is_free(found) else None
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc

    def _data(self, token: str, *, mail: bool = True) -> bytes:
        """The content of the lease; ``mail`` is true while it is held: a relay that dies may have left some."""
        return bytes(to_json({"token": token, "lease_s": self._lease_s, "mail": mail}))

    def _write(self, data: bytes, etag: str | None) -> bool:
        """Write the lease if it is the version ``etag`` (None: if there is none); False if it is not."""
        try:
            if etag is None:
                self._etag = self._client.put_new(self._path, data)
            else:
                self._etag = self._client.replace(self._path, data, etag)
        except Conflict:
            # Perhaps by this relay: the answer was lost, and the client sent the request again.
            found = self._client.get(self._path)
            if found is None or found.data != data:
                return False
            self._etag = found.etag
        return True

    def renew(self, token: str) -> bool:
        return self._write(self._data(token), self._etag)

    def release(self, token: str, *, mail: bool) -> None:
        """Release the lease after a read: the version that this relay wrote last may have been replaced."""
        found = self._client.get(self._path)
        try:
            if found is None or _token_of(found) != token:
                return
        except (ValueError, KeyError, TypeError) as exc:
            raise LocalError(f"s3: {self._path} is not a lease: {exc!r}") from exc
        if self._write(self._data("", mail=mail), found.etag) and mail:
            self._client.send_notification(self._name)


def _token_of(lease: S3Object) -> str:
    return str(from_json(lease.data)["token"])


def is_free(lease: S3Object) -> bool:
    """True if no relay has the lease. Raises ValueError, KeyError, TypeError for data that are not a lease."""
    found = from_json(lease.data)
    return not found["token"] or lease.age_s > found["lease_s"] + SLACK_S
