"""A store in objects: a log of batches, a snapshot now and then, bodies beside them.

    NAME/lease                who has the part; its age is the server's
    NAME/log/SEQ              one batch each, 16 hex digits
    NAME/snapshot/SEQ         everything but bodies, as of that batch
    NAME/body/LIFE/MESSAGE/NUMBER
                              a chunk, written before the batch that names it; LIFE is the first batch of its
                              writer's, so that two relays that think they have the part do not write over each other

A batch is one object that must not be there yet: so it is whole or nothing, and of two relays that think
they have the part only one writes it. Whoever opens the part writes an empty batch first: the one before
it cannot go on, since its next number is taken. Those first batches stay for ever. Keys and small values
are also in memory, so this is for queues whose recipients fit there; bodies are not.
"""

import logging
from collections.abc import Iterable, Iterator

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.codec import pack, unpacker
from zonemta_py.core.errors import LocalError, QueueCorrupt, QueueUnavailable
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Op
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.partitions import MAIL
from zonemta_py.storage.s3_client import Conflict, Objects
from zonemta_py.storage.s3_lease import S3Lease

FORMAT = 1
SNAPSHOT_BYTES = 8 << 20  # of batches since the last one, or as much as that took
SNAPSHOT_BATCHES = 1000
READ_AT_ONCE = 64
TRIES = 3

log = logging.getLogger(__name__)

_unpack_batch = unpacker(tuple[int, str, list[tuple[bytes, bytes | None]]])  # format, token, operations
_unpack_snapshot = unpacker(tuple[int, list[tuple[bytes, bytes]]])


class S3Store(MemoryStore):
    """One part, leased until ``close``. A write raises QueueUnavailable once the lease is lost."""

    def __init__(self, settings: QueueSettings, name: str) -> None:
        super().__init__()
        self.name = name
        self._objects = Objects(settings.s3)
        self._seq = 0
        self._first: set[int] = set()  # batches that began a life
        self._doubtful: set[int] = set()  # batches before the snapshot: such ones, or left over
        self._since = [0, 0]  # batches and octets since the snapshot
        self._snapshot_bytes = 0
        self._closed = False
        try:
            self._lease = S3Lease(self._objects, name, settings.shared.lease)
        except BaseException:
            self._objects.close()
            raise
        try:
            self._load()
        except BaseException:
            self._leave(mail=True)
            raise

    def _path(self, *parts: str) -> str:
        return "/".join((self.name, *parts))

    # ---- opening

    def _load(self) -> None:
        self._read_snapshot()
        while True:
            self._read_log()
            try:
                self._append([])
                self._first.add(self._seq)
                self._check_conditions()
                break
            except Conflict:
                continue  # the one before us was not quite dead
        on_disk = set(self._objects.paths(self._path("body/")))
        self._life = f"{self._seq:016x}".encode()
        self._objects.delete(
            on_disk - set(self._bodies(self.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))))
        )

    def _check_conditions(self) -> None:
        """Nothing holds without them: the batch that was just written must not be written again."""
        try:
            self._objects.put(self._path("log", f"{self._seq:016x}"), pack((FORMAT, "?", [])), new=True)
        except Conflict:
            return
        raise LocalError(
            f"s3 part '{self.name}': this store ignores If-None-Match on writes, so two relays could have one part"
        )

    def _read_snapshot(self) -> None:
        names = self._objects.paths(self._path("snapshot/"))
        if not names:
            return
        found = self._objects.get(names[-1])
        if found is None:
            raise QueueCorrupt(f"{names[-1]}: the snapshot is gone")
        version, items = _unpack_snapshot(found.data)
        if version != FORMAT:
            raise LocalError(f"{names[-1]}: version {version} is not known here")
        super().write(list(items))
        self._seq = _seq_of(names[-1])
        self._snapshot_bytes = len(found.data)

    def _read_log(self) -> None:
        newer = []
        for path in self._objects.paths(self._path("log/")):
            seq = _seq_of(path)
            if seq <= self._seq:
                self._doubtful.add(seq)
            else:
                newer.append((seq, path))
        for seq, path, data in self._read_all(newer):
            if seq != self._seq + 1:
                raise QueueCorrupt(f"{path}: the batch before it is missing")
            version, _, ops = _unpack_batch(data)
            if version != FORMAT:
                raise LocalError(f"{path}: version {version} is not known here")
            super().write(list(ops))
            self._seq = seq
            if not ops:
                self._first.add(seq)
            self._count(len(data))

    def _read_all(self, batches: list[tuple[int, str]]) -> Iterator[tuple[int, str, bytes]]:
        """Numbers, paths and contents, several at a time."""
        for at in range(0, len(batches), READ_AT_ONCE):
            some = batches[at : at + READ_AT_ONCE]
            for (seq, path), found in zip(
                some, self._objects.get_all([p for _, p in some]), strict=True
            ):
                if found is None:
                    raise QueueCorrupt(f"{path}: the batch is gone")
                yield seq, path, found.data

    # ---- reading

    def get(self, key: bytes, *, checked: bool = True) -> bytes | None:
        """As ``View``."""
        value = super().get(key)
        if value is None or not keys.is_chunk(key):
            return value
        try:
            found = self._objects.get(self._body(key, value))
        except LocalError as exc:
            raise QueueCorrupt(f"{key!r} cannot be read: {exc}") from exc
        return found.data if found is not None else None

    def _body(self, key: bytes, life: bytes) -> str:
        _, message, number = key.decode().split("/")
        return self._path("body", life.decode(), message, number)

    def _bodies(self, found: Iterable[bytes]) -> Iterator[str]:
        """The objects of those keys that are chunks, and there."""
        for key in found:
            life = super().get(key) if keys.is_chunk(key) else None
            if life is not None:
                yield self._body(key, life)

    # ---- writing

    def batch(self, ops: Iterable[Op], *, sync: bool) -> list[Op]:
        """What each key is in the end."""
        return list(dict(ops).items())

    def write(self, batch: list[Op]) -> None:
        """As ``Store``: bodies first, then the batch, then what is not needed any more goes."""
        if self._lease.lost:
            raise QueueUnavailable(f"S3 part '{self.name}': the lease is lost, another relay has it")
        if not batch:
            return  # an empty batch is what a life begins with
        life = self._life
        bodies = {
            self._body(key, life): value
            for key, value in batch
            if value is not None and keys.is_chunk(key)
        }
        gone = list(self._bodies(key for key, value in batch if value is None))
        small = [
            (key, life if value is not None and keys.is_chunk(key) else value) for key, value in batch
        ]
        try:
            if bodies:
                self._objects.put_all(bodies)
            self._append(small)
        except Conflict as exc:
            raise QueueUnavailable(
                f"S3 part '{self.name}': the lease is lost, another relay has it"
            ) from exc
        except LocalError as exc:
            raise QueueUnavailable(str(exc)) from exc
        super().write(small)
        if gone:
            self._objects.delete_later(gone)
        batches, octets = self._since
        if self._lease.lost:
            return
        if batches >= SNAPSHOT_BATCHES or octets >= max(SNAPSHOT_BYTES, self._snapshot_bytes):
            self._snapshot()

    def _append(self, ops: list[Op]) -> None:
        """One batch more. Raises Conflict when somebody else wrote it."""
        data = pack((FORMAT, self._lease.token, ops))
        path = self._path("log", f"{self._seq + 1:016x}")
        for _ in range(TRIES):
            try:
                self._objects.put(path, data, new=True)
                break
            except Conflict:
                found = self._objects.get(path)
                if found is None:
                    continue  # two requests of our own met
                if found.data == data:
                    break  # our own: its answer was lost, and it was sent again
                raise
        else:
            raise QueueUnavailable(f"S3 part '{self.name}': {path} cannot be written")
        self._seq += 1
        self._count(len(data))

    def _count(self, size: int) -> None:
        self._since = [self._since[0] + 1, self._since[1] + size]

    def _snapshot(self) -> None:
        """Everything as of now; the batches it holds go, but for those that began a life."""
        data = pack((FORMAT, [(key, MemoryStore.get(self, key)) for key in self.keys(b"", b"\xff\xff")]))
        try:
            self._objects.put(self._path("snapshot", f"{self._seq:016x}"), data)
            self._objects.delete_later(self._outdated())
        except LocalError as exc:
            log.error("S3 part '%s': no snapshot could be written, the log goes on: %s", self.name, exc)
            return
        self._since, self._snapshot_bytes = [0, 0], len(data)

    def _outdated(self) -> list[str]:
        for seq in self._doubtful:
            found = self._objects.get(self._path("log", f"{seq:016x}"))
            if found is not None and not _unpack_batch(found.data)[2]:
                self._first.add(seq)
        self._doubtful.clear()
        # What is newer is another relay's, should it have the part by now.
        batches = [
            path for path in self._objects.paths(self._path("log/")) if _seq_of(path) <= self._seq
        ]
        snapshots = [
            path for path in self._objects.paths(self._path("snapshot/")) if _seq_of(path) < self._seq
        ]
        return [*(path for path in batches if _seq_of(path) not in self._first), *snapshots]

    def size_bytes(self) -> int:
        """The octets of keys' values in memory, and of the bodies' chunks, roughly."""
        chunks = sum(
            1 for key in self.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE)) if keys.is_chunk(key)
        )
        return super().size_bytes() + chunks * keys.CHUNK_BYTES

    def is_remote(self) -> bool:
        """Bodies are."""
        return True

    def close(self) -> None:
        """Give the lease back, and say so when there is mail left. Closed already, it is nothing."""
        if self._closed:
            return
        mail = any(next(self.keys(prefix, keys.end_of(prefix)), None) for prefix in MAIL)
        self._leave(mail=mail)

    def _leave(self, *, mail: bool) -> None:
        self._closed = True
        self._lease.give_back(mail=mail)
        self._objects.close()


def _seq_of(path: str) -> int:
    return int(path.rpartition("/")[2], 16)
