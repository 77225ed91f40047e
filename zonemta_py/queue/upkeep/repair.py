"""What can be made whole again in a queue that damage has visited, and what cannot.

The store has been opened again, by LevelDB's own repair if need be; keys may be missing, damaged or
risen from the dead. The bodies decide: a message whose body and envelope are whole stays, with the
recipients that the queue or the event log still names; nothing that was settled is sent again, and
nothing is ever sent from half a body. Whatever cannot be kept is a ``lost`` fact, and told.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from zonemta_py.core.codec import pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.events.schema import Lost
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.chunks import read_body
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    Waiting,
    new_waiting,
    read_inflight,
    read_mark,
    read_meta,
    read_note,
    read_submitted,
    read_waiting,
)
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.ledger import Ledger, Seat
from zonemta_py.smtp.address import domain_of

Row = dict[str, Any]


async def mend(queue: Queue, ledger: Ledger, zones: Iterable[str]) -> list[Row]:
    """Make ``queue`` sound; returns what was done and what is lost, one row each. Nothing else may run."""
    mending = _Mending(queue, ledger, set(zones))
    await mending.recipients()
    await mending.messages()
    await mending.restore()
    await mending.others()
    return mending.rows


class _Whole(NamedTuple):
    """What is kept of a message that is whole."""

    zones: tuple[str, ...]
    submitter: str
    chunks: int


class _Mending:
    """One run. ``found``: the recipients that stay, by message and index."""

    def __init__(self, queue: Queue, ledger: Ledger, zones: set[str]) -> None:
        self._queue = queue
        self._store = queue.store
        self._ledger = ledger
        self._zones = zones
        self._whole: dict[str, _Whole | str] = {}
        self._found: dict[str, dict[int, bytes]] = {}
        self.rows: list[Row] = []

    def _tell(self, what: str, message: str, recipient: str, reason: str) -> None:
        self.rows.append({"what": what, "message": message, "recipient": recipient, "reason": reason})

    def _lose(self, batch: WriteBatch, seat: Seat, zone: str, address: str, reason: str) -> None:
        message, index = seat
        self._tell("lost", message, address, reason)
        self._ledger.open.pop(seat, None)
        if seat[1] < 0:
            return  # the event log never heard of it, so the sum does not miss it
        batch.record(
            Lost(
                time_ms=self._queue.now(), message=message, index=index,
                recipient=address, zone=zone, reason=reason,
            )
        )  # fmt: skip

    def _message(self, message: str) -> _Whole | str:
        """A message that is whole, or what is wrong with it."""
        if message not in self._whole:
            self._whole[message] = self._look_at(message)
        return self._whole[message]

    def _look_at(self, message: str) -> _Whole | str:
        try:
            meta = self._store.get(keys.meta_key(message))
            mark = self._store.get(keys.mark_key(message))
            if meta is None or mark is None:
                return "its envelope or its marker is gone"
            envelope, marker = read_meta(meta), read_mark(mark)
            for _ in read_body(self._store, message, marker):
                pass
        except QueueCorrupt as exc:
            return str(exc)
        return _Whole(envelope.zones, envelope.origin.submitter, marker.chunks)

    # ---- recipients

    async def recipients(self) -> None:
        """Keep every recipient of a whole message once; drop the settled and the lost."""
        # Deferred first: of two places, the one that waits for its time or is held is the careful one.
        for space in (keys.DEFERRED, keys.WAITING):
            for key, value in self._all(space):
                batch = WriteBatch()
                self._recipient(batch, key, value)
                await self._write(batch)

    def _recipient(self, batch: WriteBatch, key: bytes, value: bytes) -> None:
        try:
            zone, message, address = keys.parse_recipient(key)
        except ValueError:
            batch.delete(key)
            self._tell("removed", "", repr(key), "not the key of a recipient")
            return
        record = self._record(key, value)
        seat = (message, record.number if record else -1)
        whole = self._message(message)
        if record is None or isinstance(whole, str):
            batch.delete(key)
            reason = (
                whole
                if isinstance(whole, str)
                else "its record is damaged, and the event log does not know it"
            )
            if seat not in self._ledger.done:
                self._lose(batch, seat, zone, address, reason)
        elif seat in self._ledger.done:
            batch.delete(key)
            self._tell("removed", message, address, "the event log has its outcome")
        elif record.number in self._found.setdefault(message, {}):
            batch.delete(key)
            self._tell("removed", message, address, "it was in two places")
        else:
            self._found[message][record.number] = key
            if pack(record) != value:
                batch.put(key, pack(record))
                self._tell("restored", message, address, "its record was damaged")
            if key.startswith(keys.DEFERRED):
                batch.put(keys.due_key(record.due_ms, zone, message), b"")

    def _record(self, key: bytes, value: bytes) -> Waiting | None:
        """The record, or a new one for a recipient that the event log knows."""
        try:
            return read_waiting(value)
        except QueueCorrupt:
            _, message, address = keys.parse_recipient(key)
            index = self._ledger.index.get((message, address))
            if index is None:
                return None
            record = new_waiting(index, domain_of(address), "")
            if not key.startswith(keys.DEFERRED):
                return record
            held = (message, index) in self._ledger.held
            return record._replace(due_ms=keys.HELD_MS if held else self._queue.now())

    # ---- messages

    async def messages(self) -> None:
        """Remove what is left of messages that are not whole; mend the markers of those that are."""
        cursor = keys.MESSAGE
        while (key := next(self._store.keys(cursor, keys.end_of(keys.MESSAGE)), None)) is not None:
            message = keys.owner_of(key)
            cursor = keys.end_of(keys.message_prefix(message))
            batch = WriteBatch()
            whole = self._message(message)
            if isinstance(whole, str):
                for marker in (keys.mark_key(message), keys.meta_key(message)):
                    if self._store.get(marker) is not None:
                        batch.delete(marker)
                        self._tell("removed", message, "", whole)
                batch.put(keys.cleanup_key(message), b"")
            else:
                for other in (keys.open_key(message), keys.cleanup_key(message)):
                    if self._store.get(other) is not None:
                        batch.delete(other)
                        self._tell("removed", message, "", f"{other.decode()} beside a whole message")
            await self._write(batch)

    async def restore(self) -> None:
        """Put back what the event log has open and the queue has not; say what cannot be."""
        for seat, (zone, address) in sorted(self._ledger.open.items()):
            message, index = seat
            if index in self._found.get(message, {}):
                continue
            batch = WriteBatch()
            whole = self._message(message)
            if isinstance(whole, str):
                self._lose(batch, seat, zone, address, whole)
            else:
                to = zone if zone in self._zones else "default"
                record = new_waiting(index, domain_of(address), whole.submitter)
                key = keys.waiting_key(to, message, address)
                if seat in self._ledger.held:
                    key, record = (
                        keys.deferred_key(to, message, address),
                        record._replace(due_ms=keys.HELD_MS),
                    )
                    batch.put(keys.due_key(keys.HELD_MS, to, message), b"")
                batch.put(key, pack(record))
                self._found.setdefault(message, {})[index] = key
                self._tell(
                    "restored", message, address, "the event log has it open, the queue had lost it"
                )
            await self._write(batch)
        for message, whole in self._whole.items():
            if not isinstance(whole, str):
                await self._finish(message, whole)

    async def _finish(self, message: str, whole: _Whole) -> None:
        batch = WriteBatch()
        found = self._found.get(message)
        if not found:
            active = self._queue.acquire_message(message)
            then = self._queue.end(batch, active)  # with the report on failures that were noted
            self._tell("removed", message, "", "nobody is left to send it to")
            for call in then:
                batch.future.add_done_callback(call)
            await self._queue.commits.submit(batch)
            self._queue.release_message(active)
            return
        zones = {keys.parse_recipient(key)[0] for key in found.values()}
        if not zones <= set(whole.zones):
            meta = read_meta(self._store.get(keys.meta_key(message)) or b"")
            batch.put(keys.meta_key(message), pack(meta._replace(zones=tuple(sorted(zones)))))
            await self._write(batch)

    # ---- the rest

    async def others(self) -> None:
        """Remove keys that belong to nobody, and values that nobody can read."""
        readers: dict[bytes, Callable[[bytes], object]] = {
            keys.INFLIGHT: read_inflight,
            keys.BOUNCE: read_note,
            keys.SUBMITTED: read_submitted,
        }
        for space, read in readers.items():
            for key, value in self._all(space):
                batch = WriteBatch()
                try:
                    read(value)
                    if (
                        space != keys.SUBMITTED
                        and self._store.get(keys.mark_key(keys.owner_of(key))) is None
                    ):
                        raise QueueCorrupt("its message is gone")
                except QueueCorrupt as exc:
                    batch.delete(key)
                    self._tell("removed", "", key.decode("utf-8", "replace"), str(exc))
                await self._write(batch)

        for key, _ in self._all(keys.DUE):
            if not self._wakes_somebody(key):
                batch = WriteBatch()
                batch.delete(key)
                await self._write(batch)
        for key, _ in self._all(keys.SPILL):  # the scan of the next start writes those that are needed
            batch = WriteBatch()
            batch.delete(key)
            await self._write(batch)

    def _wakes_somebody(self, due: bytes) -> bool:
        try:
            due_ms, zone, message = keys.parse_due(due)
        except ValueError:
            return False
        prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
        rows = self._store.scan(prefix, keys.end_of(prefix))
        return any(read_waiting(value).due_ms == due_ms for _, value in rows)

    def _all(self, space: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every key of a space, as it was when it was come to."""
        cursor = space
        while True:
            pair = next(self._store.scan(cursor, keys.end_of(space)), None)
            if pair is None:
                return
            yield pair
            cursor = pair[0] + b"\x00"

    async def _write(self, batch: WriteBatch) -> None:
        if batch.ops or batch.events:
            await self._queue.commits.submit(batch)
