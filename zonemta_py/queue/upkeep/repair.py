"""Repairs the contents of a damaged queue, as far as bodies and the event log allow.

The store is open again (LevelDB after its own repair); keys may be missing, damaged or back from before
their removal. A message whose body and envelope are whole is kept, with the recipients that the queue or
the event log names. No settled recipient is sent to again, and no damaged body is sent. A recipient that
cannot be kept becomes a ``lost`` event.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.events.accounting import RecipientHistory, RecipientId
from zonemta_py.events.schema import Lost, Uncertain
from zonemta_py.queue.accept import flow_of
from zonemta_py.queue.commit import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    RecipientRecord,
    new_recipient_record,
    read_digest_entry,
    read_inflight,
    read_mark,
    read_meta,
    read_note,
    read_outbox,
    read_recipient_record,
    read_submitted,
)
from zonemta_py.queue.messages import read_body
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.transitions import event_fields, set_aside
from zonemta_py.smtp.address import domain_of
from zonemta_py.storage.interface import Store
from zonemta_py.storage.leveldb_recovery import NamedRecipient

# ---- Repair of the keys that belong to no message, and of values that cannot be read.

AddRow = Callable[[str, str, str, str], None]  # change, message, what, why

READERS: dict[bytes, Callable[[bytes], object]] = {
    keys.INFLIGHT: read_inflight,
    keys.BOUNCE: read_note,
    keys.DIGEST: read_digest_entry,
    keys.SUBMITTED: read_submitted,
}
OF_A_MESSAGE = (keys.INFLIGHT, keys.BOUNCE)


async def remove_strange_keys(queue: Queue) -> list[dict[str, Any]]:
    """Remove keys that the queue does not write, such as a repair of LevelDB can leave; a row for each. Raises QueueUnavailable."""
    rows = []
    for space in keys.LAYOUT:
        found = queue.store.keys(space, keys.end_of(space))
        for key in [key for key in found if not keys.is_key(space, key)]:
            await _delete(queue, key)
            reason = f"{key!r} is no key of a queue"
            rows.append({"what": "removed", "message": "", "recipient": "", "reason": reason})
    return rows


async def repair_outbox(queue: Queue, found: Iterable[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """Put back the ``outbox/`` records ``found`` in a damaged log, and keep aside those that cannot be read; a row for each.

    What the event log already has is removed by the next start. Raises QueueUnavailable.
    """
    rows: list[dict[str, Any]] = []
    store = queue.store
    batch = WriteBatch()
    for key, value in found:
        if store.get(key) is None:
            batch.put(key, value)
    await queue.commits.submit(batch)
    for key, value in scan_space(store, keys.OUTBOX):
        try:
            read_outbox(value)
        except QueueCorrupt as exc:
            batch = WriteBatch()
            set_aside(batch, key, value)
            await queue.commits.submit(batch)
            reason = f"{key.decode()}: {exc}; it is kept as {keys.damaged_key(key).decode()}"
            rows.append({"what": "damaged", "message": "", "recipient": "", "reason": reason})
    return rows


async def remove_other_keys(queue: Queue, add_row: AddRow) -> None:
    """Remove keys without a message, values that cannot be read, and chunks of removed messages. Raises QueueUnavailable."""
    store = queue.store
    for space, read in READERS.items():
        for key, value in scan_space(store, space):
            try:
                read(value)
                if space in OF_A_MESSAGE and store.get(keys.mark_key(keys.owner_of(key))) is None:
                    raise QueueCorrupt("its message is gone")
            except QueueCorrupt as exc:
                add_row("removed", "", key.decode("utf-8", "replace"), str(exc))
                await _delete(queue, key)
    for key, _ in scan_space(store, keys.DUE):
        if not _is_needed(store, key):
            await _delete(queue, key)
    for key, _ in scan_space(store, keys.SPILL):  # the start-up scan writes the ones that are needed
        await _delete(queue, key)
    for key, _ in scan_space(store, keys.CLEANUP):  # a damaged chunk would be found by the next check
        with suppress(QueueCorrupt):  # the next start tries again
            await queue.cleanup.remove_chunks(keys.owner_of(key))


def _is_needed(store: Store, due: bytes) -> bool:
    """True if a ``due/`` key wakes any recipient."""
    try:
        due_ms, zone, message = keys.parse_due(due)
    except ValueError:
        return False
    prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
    rows = store.scan(prefix, keys.end_of(prefix))
    return any(read_recipient_record(value).due_ms == due_ms for _, value in rows)


def scan_space(store: Store, space: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys of a space, each read when the previous one was handled."""
    cursor = space
    while True:
        pair = next(store.scan(cursor, keys.end_of(space)), None)
        if pair is None:
            return
        yield pair
        cursor = pair[0] + b"\x00"


async def _delete(queue: Queue, key: bytes) -> None:
    batch = WriteBatch()
    batch.delete(key)
    await queue.commits.submit(batch)


# ---- repair

Row = dict[str, Any]


async def repair_contents(
    queue: Queue,
    history: RecipientHistory,
    zones: Iterable[str],
    named: Sequence[NamedRecipient] = (),
) -> list[Row]:
    """Make ``queue`` consistent; returns one row for each change and each loss.

    ``history`` has the addresses. ``zones`` are those of the configuration. ``named``: in damaged writes, which are
    not in the queue. No other task may use the queue. Raises QueueUnavailable.
    """
    repair = _Repair(queue, history, set(zones))
    await repair.recipients()
    await repair.messages()
    await repair.restore()
    await repair.left_out(named)
    await remove_other_keys(queue, repair.add_row)
    return repair.rows


class _WholeMessage(NamedTuple):
    """The data that later steps need of a message whose body and envelope are whole."""

    zones: tuple[str, ...]
    flow: str


class _DamagedMessage(NamedTuple):
    """A message that cannot be sent, and why."""

    reason: str


class _Repair:
    """One run. ``_kept``: the keys of the recipients that stay, by message and recipient index."""

    def __init__(self, queue: Queue, history: RecipientHistory, zones: set[str]) -> None:
        self._queue = queue
        self._store = queue.store
        self._zones = zones
        self._settled = history.outcomes
        self._held = history.held
        self._open = {
            recipient_id: (history.zones[recipient_id], history.addresses[recipient_id])
            for recipient_id in history.open_recipients()
        }
        self._addresses = history.addresses
        self._index = {
            (message, address): index for (message, index), address in history.addresses.items()
        }
        self._messages: dict[str, _WholeMessage | _DamagedMessage] = {}
        self._kept: dict[str, dict[int, bytes]] = {}
        self._named: set[tuple[str, str]] = set()  # message and address of those that are lost
        self.rows: list[Row] = []

    def add_row(self, what: str, message: str, recipient: str, reason: str) -> None:
        self.rows.append({"what": what, "message": message, "recipient": recipient, "reason": reason})

    def _lose(
        self, batch: WriteBatch, recipient_id: RecipientId, zone: str, address: str, reason: str
    ) -> None:
        message, index = recipient_id
        self._named.add((message, address))
        self.add_row("lost", message, address, reason)
        self._open.pop(recipient_id, None)
        batch.record(
            Lost(
                time_ms=self._queue.now(), message=message, index=index,
                recipient=address, zone=zone, reason=reason,
            )
        )  # fmt: skip

    def _message(self, message: str) -> _WholeMessage | _DamagedMessage:
        """The message, read and verified once."""
        if message not in self._messages:
            self._messages[message] = self._read_message(message)
        return self._messages[message]

    def _read_message(self, message: str) -> _WholeMessage | _DamagedMessage:
        try:
            meta = self._store.get(keys.meta_key(message))
            mark = self._store.get(keys.mark_key(message))
            if meta is None or mark is None:
                return _DamagedMessage("its envelope or its marker is missing")
            envelope, marker = read_meta(meta), read_mark(mark)
            for _ in read_body(self._store, message, marker):
                pass
        except QueueCorrupt as exc:
            return _DamagedMessage(str(exc))
        return _WholeMessage(
            envelope.zones, flow_of(envelope.origin, envelope.sender, envelope.options.priority)
        )

    # ---- recipients

    async def recipients(self) -> None:
        """Keep each recipient of a whole message once; remove the settled and the lost."""
        # Deferred first: of two places, the one that is due later, or held, is kept.
        for space in (keys.DEFERRED, keys.WAITING):
            for key, value in scan_space(self._store, space):
                batch = WriteBatch()
                self._recipient(batch, key, value)
                await self._write(batch)

    def _recipient(self, batch: WriteBatch, key: bytes, value: bytes) -> None:
        zone, message, address = keys.parse_recipient(key)
        record, found = self._read(value), self._message(message)
        is_new = record is None
        if is_new:
            record = self._new_record(key)
        if record is None:
            # The event log does not have its acceptance either, so there is no event to balance.
            batch.delete(key)
            reason = "its record is damaged, and the event log does not have it"
            self.add_row(
                "lost", message, address, found.reason if isinstance(found, _DamagedMessage) else reason
            )
            return
        index = record.recipient_index
        recipient_id = (message, index)
        if isinstance(found, _DamagedMessage):
            batch.delete(key)
            if recipient_id not in self._settled:
                self._lose(batch, recipient_id, zone, address, found.reason)
        elif recipient_id in self._settled:
            batch.delete(key)
            self.add_row("removed", message, address, "the event log has its outcome")
        elif index in self._kept.setdefault(message, {}):
            batch.delete(key)
            self.add_row("removed", message, address, "it was in two places")
        elif self._is_other(recipient_id, address, record):
            batch.delete(key)  # ``restore`` puts back the one of the event log
            self.add_row("removed", message, address, "it is not the address that was accepted")
            if recipient_id not in self._open:
                self._lose(batch, recipient_id, zone, address, "its address is damaged")
        else:
            self._kept[message][index] = key
            if is_new:
                batch.put_record(key, record)
                self.add_row("restored", message, address, "its record was damaged")
            if key.startswith(keys.DEFERRED):
                batch.put(keys.due_key(record.due_ms, zone, message), b"")

    def _is_other(self, recipient_id: RecipientId, address: str, record: RecipientRecord) -> bool:
        """True if the key has another address than the accepted event; without that, another domain than the record."""
        accepted = self._addresses.get(recipient_id)
        return address != accepted if accepted is not None else domain_of(address) != record.domain

    def _read(self, value: bytes) -> RecipientRecord | None:
        try:
            return read_recipient_record(value)
        except QueueCorrupt:
            return None

    def _new_record(self, key: bytes) -> RecipientRecord | None:
        """A new record for a damaged one of a recipient that the event log has; else None."""
        _, message, address = keys.parse_recipient(key)
        index = self._index.get((message, address))
        if index is None:
            return None
        record = new_recipient_record(index, domain_of(address), "")
        if not key.startswith(keys.DEFERRED):
            return record
        held = (message, index) in self._held
        now_ms = self._queue.now()
        return record._replace(due_ms=keys.HELD_MS if held else now_ms, last_ms=now_ms)

    # ---- messages

    async def messages(self) -> None:
        """Remove damaged messages; remove ``open/`` and ``cleanup/`` keys of whole ones."""
        cursor = keys.MESSAGE
        while (key := next(self._store.keys(cursor, keys.end_of(keys.MESSAGE)), None)) is not None:
            message = keys.owner_of(key)
            cursor = keys.end_of(keys.message_prefix(message))
            batch = WriteBatch()
            found = self._message(message)
            if isinstance(found, _DamagedMessage):
                for marker in (keys.mark_key(message), keys.meta_key(message)):
                    if self._store.get(marker) is not None:
                        batch.delete(marker)
                        self.add_row("removed", message, "", found.reason)
                batch.put(keys.cleanup_key(message), b"")
            else:
                for other in (keys.open_key(message), keys.cleanup_key(message)):
                    if self._store.get(other) is not None:
                        batch.delete(other)
                        self.add_row("removed", message, "", f"{other.decode()} of a whole message")
            await self._write(batch)

    async def restore(self) -> None:
        """Put back the recipients that the event log has open and the queue has not."""
        for recipient_id, (zone, address) in sorted(self._open.items()):
            message, index = recipient_id
            if index in self._kept.get(message, {}):
                continue
            batch = WriteBatch()
            found = self._message(message)
            if isinstance(found, _DamagedMessage):
                self._lose(batch, recipient_id, zone, address, found.reason)
            else:
                self._restore(batch, recipient_id, zone, address, found.flow)
            await self._write(batch)
        for message, found in self._messages.items():
            if isinstance(found, _WholeMessage):
                await self._finish(message, found)

    def _restore(
        self, batch: WriteBatch, recipient_id: RecipientId, zone: str, address: str, flow: str
    ) -> None:
        message, index = recipient_id
        zone = zone if zone in self._zones else "default"
        record = new_recipient_record(index, domain_of(address), flow)
        key = keys.waiting_key(zone, message, address)
        if recipient_id in self._held:
            key, record = keys.deferred_key(zone, message, address), record._replace(due_ms=keys.HELD_MS)
            batch.put(keys.due_key(keys.HELD_MS, zone, message), b"")
        batch.put_record(key, record)
        self._uncertain(batch, message, key, record)
        self._kept.setdefault(message, {})[index] = key
        self.add_row("restored", message, address, "open in the event log, missing in the queue")

    async def left_out(self, named: Sequence[NamedRecipient]) -> None:
        """Name the mail of damaged writes that neither queue nor event log have; record a removal that was left out."""
        accepted = {message for message, _ in self._addresses}  # the event has all of them
        messages = {message for message, _ in self._settled} | self._kept.keys()
        for each in sorted(named, key=lambda one: not one.address):  # messages without a recipient last
            batch = WriteBatch()
            message, address = each.message, each.address
            if each.is_removed:
                self._left_out_removal(batch, message, address)
            elif message in accepted:
                continue
            elif address:
                self._left_out(batch, each)
            elif message not in messages:
                messages.add(message)
                self.add_row("lost", message, "", "it may have had more recipients in the damaged part")
            await self._write(batch)

    def _left_out(self, batch: WriteBatch, each: NamedRecipient) -> None:
        message, address = each.message, each.address
        record = self._read(each.record)
        index = None if record is None else record.recipient_index
        is_known = index is not None and (
            index in self._kept.get(message, {}) or (message, index) in self._settled
        )
        if is_known or (message, address) in self._named:
            return
        reason = "what was written of it is damaged, and the event log does not have it"
        if index is None:
            self._named.add((message, address))
            self.add_row("lost", message, address, reason)
        else:
            self._lose(batch, (message, index), each.zone, address, reason)

    def _left_out_removal(self, batch: WriteBatch, message: str, address: str) -> None:
        """A recipient that is still there was delivered, deferred or bounced in a write that is left out: which, is not known."""
        for key in self._kept.get(message, {}).values():
            if keys.parse_recipient(key)[2] == address:
                record = read_recipient_record(self._store.get(key) or b"")
                self._uncertain(batch, message, key, record)

    def _uncertain(self, batch: WriteBatch, message: str, key: bytes, record: RecipientRecord) -> None:
        """Record that the recipient of ``key`` may have been delivered: the event log can have a gap, too."""
        meta = read_meta(self._store.get(keys.meta_key(message)) or b"")
        fields = event_fields(meta, key, record, self._queue.now())
        batch.record(Uncertain(**{**fields, "attempt": record.attempts + 1}))

    async def _finish(self, message: str, found: _WholeMessage) -> None:
        """End a message without recipients; else make its envelope name their zones."""
        batch = WriteBatch()
        kept = self._kept.get(message)
        if not kept:
            active = self._queue.acquire_message(message)
            callbacks = self._queue.reporting.end_message(
                batch, active
            )  # with the report on noted failures
            self.add_row("removed", message, "", "it has no recipient left")
            for callback in callbacks:
                batch.future.add_done_callback(callback)
            await self._queue.commits.submit(batch)
            self._queue.release_message(active)
            return
        zones = {keys.parse_recipient(key)[0] for key in kept.values()}
        if not zones <= set(found.zones):
            meta = read_meta(self._store.get(keys.meta_key(message)) or b"")
            batch.put_record(keys.meta_key(message), meta._replace(zones=tuple(sorted(zones))))
            await self._write(batch)

    async def _write(self, batch: WriteBatch) -> None:
        if batch.ops or batch.events:
            await self._queue.commits.submit(batch)
