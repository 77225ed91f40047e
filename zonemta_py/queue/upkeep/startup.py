"""The start of a queue: its identity, recovery after a crash, then the start-up scan of each zone.

1. ``begin_boot``, before the queue is made: the store has a format that is known, the boot count rises, and the identity says
   which node, boot and last message id it is.
2. ``recover``, before mail is accepted or sent: transactions that were interrupted make their recipients uncertain
   (``InterruptedDeliveries``), bodies without a marker are removed, removals are finished.
3. ``scan_zone``, while intake and delivery run, in slices of a few milliseconds: every waiting recipient of a zone, oldest first,
   into the ready window. It ends at the newest message id of the previous boot: newer mail is offered to the window when it is
   committed. It runs again, over all mail, when the disk has refused reads (``scan_again``): what was to be read then is on disk,
   and no window knows it.

    queue = Queue(store, begin_boot(store), options, destination_of)
    await queue.recover()
    await queue.begin()
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.events.schema import Uncertain, boot_of
from zonemta_py.queue import transitions
from zonemta_py.queue.census import zones_to_scan
from zonemta_py.queue.commit import GroupCommit, WriteBatch
from zonemta_py.queue.deferral import Deferral
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    FORMAT,
    EnvelopeRecord,
    Inflight,
    RecipientRecord,
    read_inflight,
    read_meta,
    read_recipient_record,
)
from zonemta_py.queue.messages import recipients_of
from zonemta_py.queue.ready.spill import SpillKey
from zonemta_py.queue.ready.streams import QueuedRecipient, rank_of
from zonemta_py.queue.ready.windows import ReadyWindows
from zonemta_py.queue.transitions import event_fields
from zonemta_py.queue.upkeep.cleanup import Cleanup
from zonemta_py.queue.upkeep.inspect import known_seq
from zonemta_py.storage.interface import Access, Store

log = logging.getLogger(__name__)


SLICE = 1000  # recipients read without giving way to other tasks: about 3 ms


async def scan_zone(
    store: Store, commits: GroupCommit, windows: ReadyWindows, zone: str, newest: str
) -> int:
    """Offer the recipients of ``zone`` up to message ``newest``; returns how many there were."""
    cursor = keys.zone_prefix(keys.WAITING, zone)
    stop = keys.end_of(keys.zone_prefix(keys.WAITING, zone, newest))
    total = 0
    while True:
        began_s, written = monotonic_s(), commits.batches
        scanned = _Slice(store, windows)
        count, beyond = 0, None
        try:
            for key, value in store.scan(cursor, stop):
                scanned.offer(zone, key, value)
                cursor = key + b"\x00"
                count += 1
                if count == SLICE:
                    break
        except QueueCorrupt as exc:
            beyond = _beyond_damage(store, zone, cursor)
            log.critical("recipients of zone %s are not sent to, repair the queue: %s", zone, exc)
        total += count
        batch = scanned.batch()
        if batch.ops:
            await commits.submit(batch)
        scanned.commit()
        if beyond is not None:
            cursor = beyond
        elif count < SLICE:
            with suppress(QueueCorrupt):  # they are harmless, and it has been reported
                await _delete_stale_spills(store, commits, windows, zone)
            return total
        # A quarter of the time while other batches are written, else all of it.
        busy = commits.batches - written > 1
        await asyncio.sleep(3 * (monotonic_s() - began_s) if busy else 0)


AGAIN_S = 60.0  # after the first reads that failed
AGAIN_MAX_S = 600.0  # while reads fail


async def scan_again(
    store: Store, commits: GroupCommit, windows: ReadyWindows, deferral: Deferral, ids: keys.MessageIds
) -> None:
    """Offer all mail again, some time after the disk has refused reads, forever."""
    wait_s, seen = AGAIN_S, store.failed_reads
    while True:
        await asyncio.sleep(wait_s)
        if store.failed_reads == seen:
            wait_s = AGAIN_S
            continue
        log.warning(
            "%d reads of the queue have failed: all mail is looked at again", store.failed_reads - seen
        )
        seen, wait_s = store.failed_reads, min(2 * wait_s, AGAIN_MAX_S)
        with suppress(QueueCorrupt):  # it has been counted
            for zone in sorted(zones_to_scan(store)):
                await scan_zone(store, commits, windows, zone, ids.last)
        deferral.look_again()


async def _delete_stale_spills(
    store: Store, commits: GroupCommit, windows: ReadyWindows, zone: str
) -> None:
    """Delete the spill keys of destinations that no recipient has any more: the smarthost has changed.

    After the scan the window knows every destination with spilled mail.
    """
    cursor, stop = keys.zone_prefix(keys.SPILL, zone), keys.end_of(keys.zone_prefix(keys.SPILL, zone))
    while (key := next(store.keys(cursor, stop), None)) is not None:
        destination = keys.parse_spill(key)[1]
        every = keys.end_of(keys.spill_key(zone, destination, ""))
        if windows.zone(zone).spilled.has(destination) or any(
            spill[:2] == (zone, destination) for spill in windows.pending
        ):
            cursor = every
            await asyncio.sleep(0)
            continue
        batch = WriteBatch()
        for stale in islice(store.keys(key, every), SLICE):
            batch.delete(stale)
        await commits.submit(batch)


class _Slice:
    """Recipients read in one slice: in the window at once, or to be spilled by ``batch``."""

    def __init__(self, store: Store, windows: ReadyWindows) -> None:
        self._store = store
        self._windows = windows
        self._placed: set[SpillKey] = set()
        self._spills: list[SpillKey] = []

    def offer(self, zone: str, key: bytes, value: bytes) -> None:
        """Place one recipient, given by its ``delivery-zone/`` key and record."""
        _, message, address = keys.parse_recipient(key)
        try:
            recipient = QueuedRecipient(key, zone, message, address, read_recipient_record(value))
        except QueueCorrupt as exc:
            log.critical("%s to %s is not sent: %s", message, address, exc)
            return
        window, record = self._windows.zone(zone), recipient.record
        destination = self._windows.destination_of(zone, record.domain)
        if key in window:
            return
        stream, urgent = window.stream(destination, recipient), rank_of(record.flow) == 0
        spill = SpillKey(zone, destination, message, stream)
        behind = not urgent and window.spilled.has(destination, stream)
        if window.has_room(destination, stream, urgent=urgent) and not behind:
            window.add(destination, [recipient])
            self._placed.add(spill)
        elif not self._spills or self._spills[-1] != spill:
            self._spills.append(spill)
            self._windows.pending[spill.place] += 1

    def batch(self) -> WriteBatch:
        """Writes the spill keys of what found no room, and deletes those of what did."""
        batch = WriteBatch()
        for spill in sorted(each for each in self._placed if each.place not in self._windows.pending):
            window = self._windows.zone(spill.zone)
            try:
                is_there = self._store.get(spill.key) is not None
            except QueueCorrupt as exc:  # it stays, and its recipients are in the window
                log.critical("a key of spilled mail cannot be read, repair the queue: %s", exc)
                continue
            if not is_there:
                continue
            if window.spilled.has(spill.destination, None if window.has_pools else spill.stream):
                # Other mail of the stream, or of this message, has spilled since: the refill deletes this key.
                window.refills.note_spill(spill.destination, spill.stream, spill.message)
            else:
                batch.delete(spill.key)
        for spill in self._spills:
            batch.put(spill.key, b"")
        return batch

    def commit(self) -> None:
        """``batch`` is on disk."""
        self._windows.spilled(self._spills)
        for zone, destination in {spill[:2] for spill in (*self._spills, *self._placed)}:
            self._windows.on_ready(zone, destination, False)


def _beyond_damage(store: Store, zone: str, cursor: bytes) -> bytes:
    """The key to continue at after one that cannot be read: the next message, or the end of the range."""
    prefix = keys.zone_prefix(keys.WAITING, zone)
    message = cursor[len(prefix) : len(prefix) + keys.MESSAGE_ID_LENGTH].decode("ascii", "replace")
    try:
        start = keys.end_of(keys.message_prefix(message)) if message else keys.MESSAGE
        following = next(store.keys(start, keys.end_of(keys.MESSAGE)), None)
    except QueueCorrupt:
        following = None
    if following is None:
        return keys.end_of(prefix)
    return keys.zone_prefix(keys.WAITING, zone, keys.owner_of(following))


# ---- Recovery after a crash, before mail is accepted or sent.
#
# Nothing is repaired, because each state that a crash can leave is a valid one: interrupted transactions are
# marked uncertain, bodies without a marker are removed, removals are finished.

FORMAT_VERSION = (
    b"6"  # with each change of ``records.FORMAT``: an earlier version would take new records for damage
)
IMPORTING = b"importing"  # instead of a version, during `queue import`
FORMATS = (None, b"1", b"2", b"3", b"4", b"5", FORMAT_VERSION)


@dataclass(frozen=True, slots=True)
class Identity:
    """The queue's node (6 hex digits), how often it was opened, and the last message id issued.

    ``stopped``: the last boot that ended in order; 0: none.
    """

    node: str
    boot: int
    last_id: str
    stopped: int


EndOfLog = Callable[[str], int]  # the highest sequence number of a node in the event log, or 0
NewestInLog = Callable[[str], str]  # the highest message id of a node in the event log, or empty


def no_event_log(node: str) -> int:
    """The end of an event log that is not there."""
    return 0


def no_message(node: str) -> str:
    """The newest message of an event log that is not there."""
    return ""


def begin_boot(
    store: Store,
    access: Access = Access.CREATE,
    end_of_log: EndOfLog = no_event_log,
    newest_in_log: NewestInLog = no_message,
) -> Identity:
    """Write format, node and the new boot count, unless ``access`` is READ; returns the identity.

    The new boot is later than any in the event log, and so are message ids if the queue may be older than it:
    after a clock that was ahead, ids do not follow the time. Raises LocalError for an unknown format, and for a
    store that is not there, not whole, or older than the event log.
    """
    found = store.get(keys.META_FORMAT)
    if found is None and access is not Access.REPAIR:
        first = next(store.keys(b"", b"\xff"), None)
        if first is not None:
            raise LocalError(
                f"the queue has keys ({first!r} …) and no format: run zonemta queue repair, or restore all of it"
            )
        if access is not Access.CREATE:
            raise LocalError("there is no queue yet; the first `zonemta serve` creates it")
    if found == IMPORTING:
        raise LocalError("the import of this queue is not finished: run zonemta queue import again")
    if found not in FORMATS:
        raise LocalError(
            f"the queue has format {found.decode(errors='replace')}; this version reads formats up to {FORMAT_VERSION.decode()}"
        )
    node = (store.get(keys.META_NODE) or new_node()).decode()
    boot, stopped = (int(store.get(key) or b"0") for key in (keys.META_BOOT, keys.META_STOPPED))
    log_seq = 0 if access is Access.READ else end_of_log(node)
    if access not in (Access.READ, Access.OLDER, Access.REPAIR) and log_seq > known_seq(store):
        raise LocalError(
            "the queue is older than its event log (a backup, a snapshot, or a lost log of the database): mail "
            "that was delivered since would be sent again. `zonemta queue repair` removes what the event log "
            "has as settled; `zonemta serve --queue-is-older` starts with the queue as it is"
        )
    exported = max(log_seq, int(store.get(keys.META_EXPORTED) or b"0", 16))
    boot = max(boot, boot_of(log_seq)) + 1
    last_id = (store.get(keys.META_IDS) or b"").decode()
    ops = [
        (keys.META_FORMAT, FORMAT_VERSION),
        (keys.META_NODE, node.encode()),
        (keys.META_BOOT, str(boot).encode()),
    ]
    if access in (Access.OLDER, Access.REPAIR):
        last_id = max(last_id, newest_in_log(node))
        ops += [(keys.META_EXPORTED, b"%x" % exported), (keys.META_IDS, last_id.encode())]
    if access is not Access.READ:
        store.write(store.batch(ops, sync=True))
    return Identity(node, boot, last_id, stopped)


def new_node() -> bytes:
    """A name for a queue: 6 random hex digits."""
    return secrets.token_hex(3).encode()


async def recover(
    store: Store, commits: GroupCommit, cleanup: Cleanup, interrupted: "InterruptedDeliveries"
) -> None:
    """Handle the keys that the previous boot left.

    Raises QueueUnavailable, QueueCorrupt.
    """
    for key, value in list(store.scan(keys.INFLIGHT, keys.end_of(keys.INFLIGHT))):
        batch = WriteBatch()
        interrupted.add(batch, keys.owner_of(key), read_inflight(value))
        batch.delete(key)
        await commits.submit(batch)
    for space in (keys.OPEN, keys.CLEANUP):
        for key in list(store.keys(space, keys.end_of(space))):
            message = keys.owner_of(key)
            if store.get(keys.mark_key(message)) is not None:
                raise QueueCorrupt(f"{message}: {key!r} beside the marker of an accepted message")
            await cleanup.remove_chunks(message)
    count = interrupted.transactions
    if count:
        log.warning(
            "%d transactions were interrupted; delivery to their recipients is attempted again", count
        )


# ---- Deliveries that ended without a reply: by a crash of the relay, or by the end of one sender process.
#
# Their recipients are *uncertain*: the peer may have the message. An event says so, and they are ready again.


SUSPECT_DELAY_MS = 1000  # between suspects, so that one of them is in flight at the next crash


class InterruptedDeliveries:
    """The transitions of recipients whose delivery was interrupted.

    A recipient interrupted more often than a bystander of a crash should be is a suspect: it waits alone
    for its next attempt. After ``poison_after`` interruptions in a row it is held. ``excused``: what deliveries of this boot
    and of earlier ones interrupted is the fault of no message; a start that failed since then has begun none.
    """

    def __init__(self, store: Store, poison_after: int, now_ms: int, excused: int) -> None:
        self._store = store
        self._poison_after = poison_after
        self._now_ms = now_ms
        self._excused = excused
        self._suspects = 0
        self.transactions = 0

    def add(self, batch: WriteBatch, message: str, inflight: Inflight) -> dict[bytes, RecipientRecord]:
        """Put the transitions of one ``inflight/`` record into ``batch``.

        Returns the recipients that are ready again or deferred, by their key after ``batch``.
        """
        self.transactions += 1
        value = self._store.get(keys.meta_key(message))
        meta = read_meta(value) if value else None
        remaining: dict[bytes, RecipientRecord] = {}
        for key, data in recipients_of(self._store, message, (inflight.zone,)):
            record = read_recipient_record(data)
            if meta is not None and record.recipient_index in inflight.indexes:
                after, changed = self._interrupt(batch, meta, key, record, inflight)
                remaining[after] = changed
        return remaining

    def _interrupt(
        self,
        batch: WriteBatch,
        meta: EnvelopeRecord,
        key: bytes,
        record: RecipientRecord,
        inflight: Inflight,
    ) -> tuple[bytes, RecipientRecord]:
        zone, message, address = keys.parse_recipient(key)
        fields = event_fields(meta, key, record, self._now_ms)
        batch.record(Uncertain(**{**fields, "attempt": inflight.attempt}))
        counts = inflight.boot > self._excused
        before, uncertain = record, record.uncertain + counts
        record = before._replace(version=FORMAT, uncertain=uncertain)
        if counts and record.uncertain >= self._poison_after:
            reason = f"the relay stopped {record.uncertain} times in the middle of this delivery"
            log.critical("%s to %s is held: %s", message, address, reason)
            transitions.move(batch, zone, message, before, record)
            record = record._replace(code=0, status="4.3.0", text=reason, last_ms=self._now_ms)
            held = transitions.hold(batch, meta, key, record, reason, self._now_ms)
            return keys.deferred_key(zone, message, address), held
        if 1 < record.uncertain >= self._poison_after - 1:
            self._suspects += 1
            due_ms = self._now_ms + self._suspects * SUSPECT_DELAY_MS
            batch.delete(key)
            suspect, deferred_key = (
                record._replace(due_ms=due_ms),
                keys.deferred_key(zone, message, address),
            )
            batch.put_record(deferred_key, suspect)
            transitions.move(batch, zone, message, before, suspect)
            batch.put(keys.due_key(due_ms, zone, message), b"")
            return deferred_key, suspect
        batch.put_record(key, record)
        transitions.move(batch, zone, message, before, record)
        return key, record
