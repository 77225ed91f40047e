"""Deferred recipients, and the timer that wakes them.

States of a recipient here::

    deferred: ``deferred/``, and a ``due/`` key of its message ─▶ moving ─▶ waiting: ``waiting/``, in its window or spilled

Invariants:

- Each time at which a recipient of a message is due has a ``due/`` key, written in the batch that defers it. One that leads to no
  recipient is deleted when it is due, or by a command that has removed the recipients.
- ``due/`` keys are read from a cursor and not from the front of the range, which is full of tombstones; ``written`` sets it back for
  a key that is before it.
- Recipients that a batch is moving are in ``moving`` until it is on disk, so that none is moved twice.
- A ``due/`` key that a batch under way writes (``expect``, ``written``) is not deleted meanwhile.
- Held recipients have ``due/`` keys at HELD_MS, at the end of the range; no timer wakes them.
- A damaged record does not stop the others: it is logged, and left for a repair.

Callers: the queue runs ``run`` and ``keep_rescuing``, and announces the keys that it writes; ``upkeep.move.flush`` and ``Operator``
wake recipients by ``commit``.

Example: 1000 recipients of one message are due now. They are woken by four batches of WAKE_MAX, and the next one deletes the key.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from zonemta_py.core.clock import monotonic_s, wait_event
from zonemta_py.core.errors import QueueCorrupt, QueueUnavailable
from zonemta_py.queue import transitions
from zonemta_py.queue.commit import CommitFuture, GroupCommit, WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import RecipientRecord, read_meta, read_recipient_record
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.queue.ready.windows import ReadyWindows, Reservation
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)


IsDue = Callable[[str, RecipientRecord], bool]  # of a message, one of its recipients


WAKE_MAX = 250  # recipients in one batch
READ_MAX = 5000  # recipients read in one turn of the loop, unless one message has more
DUE_LOOKED_AT = 1000
CHECK_EVERY_S = 60.0  # in case the system clock was set
RESCUE_EVERY_S = 3600.0
SET_BACK_MS = 60_000  # of the clock, after which there may be recipients that are due too late


class Deferral:
    """Wakes recipients that are due. ``now`` gives unix ms; no recipient is deferred for ``longest_delay_ms``."""

    def __init__(
        self,
        store: Store,
        commits: GroupCommit,
        windows: ReadyWindows,
        now: Callable[[], int],
        longest_delay_ms: int,
    ) -> None:
        self._store = store
        self._commits = commits
        self._windows = windows
        self._now = now
        self._longest_delay_ms = longest_delay_ms
        self._cursor = keys.DUE
        self._changed = asyncio.Event()
        self._next_due_ms: int | None = None
        self._most_ahead_ms = self._ahead_ms()  # when a ``due/`` key was written since the last rescue
        self.moving: set[bytes] = set()
        self._expected: Counter[bytes] = Counter()  # due/ keys that commits under way write
        self._doubtful: set[bytes] = (
            set()
        )  # of those, keys of held mail that may wake none when they are written

    def expect(self, due: bytes) -> None:
        """A commit under way writes this ``due/`` key, which must not be deleted; ``written`` follows."""
        self._expected[due] += 1

    def written(self, due: bytes) -> None:
        """The commit with this ``due/`` key is on disk."""
        self._expected[due] -= 1
        if not self._expected[due]:
            del self._expected[due]
            if due in self._doubtful:
                self._delete_doubtful(due)
        due_ms = keys.parse_due(due)[0]
        if self._next_due_ms is None or due_ms < self._next_due_ms:
            self._next_due_ms = due_ms
            self._changed.set()
        self._cursor = min(self._cursor, keys.due_key(due_ms, "", ""))
        self._most_ahead_ms = max(self._most_ahead_ms, self._ahead_ms())

    def _delete_doubtful(self, due: bytes) -> None:
        """A recipient was removed while the key was being written: no timer deletes a key of held mail."""
        self._doubtful.discard(due)
        due_ms, zone, message = keys.parse_due(due)
        batch = WriteBatch()
        with suppress(QueueCorrupt):  # the key stays until the next start
            self.delete_unused_due_keys(batch, zone, message, {due_ms}, ())
        if batch.ops:
            self._commits.submit(batch)

    async def run(self) -> None:
        """Wake recipients at their time, forever."""
        while True:
            self._changed.clear()
            while await self.wake_due(self._now()):
                pass
            self._next_due_ms = self._first_due_ms()
            wait_s = CHECK_EVERY_S
            if self._next_due_ms is not None:
                wait_s = min(wait_s, max(0.0, (self._next_due_ms - self._now()) / 1000))
            await wait_event(self._changed, wait_s)

    def look_again(self) -> None:
        """Look at all ``due/`` keys again: some could not be read."""
        self._cursor = keys.DUE
        self._changed.set()

    def next_due_ms(self) -> dict[str, int]:
        """When deferred recipients of each zone are due next (unix ms), among the next DUE_LOOKED_AT messages."""
        found: dict[str, int] = {}
        held = keys.due_key(keys.HELD_MS, "", "")
        for due in islice(self._due_keys(held), DUE_LOOKED_AT):
            due_ms, zone, _ = keys.parse_due(due)
            found.setdefault(zone, due_ms)
        return found

    def _first_due_ms(self) -> int | None:
        key = next(self._due_keys(keys.end_of(keys.DUE)), None)
        return keys.parse_due(key)[0] if key is not None else None

    async def wake_due(self, now_ms: int) -> int:
        """Move up to WAKE_MAX due recipients; returns how many ``due/`` keys were handled."""
        stop = keys.due_key(now_ms + 1, "", "")
        turn = self._turn(self._due_keys(stop), lambda message, record: record.due_ms <= now_ms)
        self._cursor = turn.resume_at or self._cursor
        if turn.handled:
            await self.commit(turn.batch, turn.woken)
        return turn.handled

    def _turn(self, due_keys: Iterable[bytes], is_due: IsDue) -> "_Turn":
        """Wake recipients of ``due_keys`` that are due, as many as one turn of the loop may."""
        turn = _Turn()
        for due in due_keys:
            if len(turn.woken) >= WAKE_MAX or turn.handled >= WAKE_MAX or turn.read >= READ_MAX:
                break
            due_ms, zone, message = keys.parse_due(due)
            turn.handled += 1
            if (zone, message) not in turn.left and not self._wake_all(turn, zone, message, is_due):
                break
            left = turn.left[zone, message]
            if left is not None and due not in self._expected and due_ms not in left:
                turn.batch.delete(due)
            turn.resume_at = due + b"\x00"
        return turn

    def _due_keys(self, stop: bytes) -> Iterator[bytes]:
        """The ``due/`` keys from the cursor to ``stop``, or to the first damaged one."""
        try:
            yield from self._store.keys(self._cursor, stop)
        except QueueCorrupt as exc:
            log.critical("deferred recipients are not sent to, repair the queue: %s", exc)
            self._cursor = max(self._cursor, stop)

    def _wake_all(self, turn: "_Turn", zone: str, message: str, is_due: IsDue) -> bool:
        """Wake the recipients of a message that are due; False: the turn ended before the last one.

        Once in a turn, also for a message with several ``due/`` keys: its batch is not on disk yet.
        """
        left: set[int] = set()
        try:
            for recipient in self._wake_message(turn, zone, message, is_due, left):
                turn.woken.append(recipient)
                if len(turn.woken) >= WAKE_MAX:
                    return False
        except QueueCorrupt as exc:
            log.critical("%s is not sent, repair the queue: %s", message, exc)
            turn.left[zone, message] = None
        else:
            turn.left[zone, message] = left
        return True

    def _wake_message(
        self, turn: "_Turn", zone: str, message: str, is_due: IsDue, left: set[int]
    ) -> Iterator[QueuedRecipient]:
        prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
        for key, value in self._store.scan(prefix, keys.end_of(prefix)):
            turn.read += 1
            record = readable(key, value)
            if record is None or key in self.moving:
                continue
            if is_due(message, record):
                address = keys.parse_recipient(key)[2]
                yield transitions.wake(turn.batch, zone, message, address, record)
            else:
                left.add(record.due_ms)

    def delete_unused_due_keys(
        self, batch: WriteBatch, zone: str, message: str, times: Set[int], removed: Container[bytes]
    ) -> None:
        """Recipients due at ``times`` (ms) were removed: delete the ``due/`` keys that wake no other.

        ``removed``: the keys that ``batch`` removes; those of batches before it are gone, or are going.
        """
        unused = self._not_expected(zone, message, times)
        prefix = keys.zone_prefix(keys.DEFERRED, zone, message)
        for key, value in self._store.scan(prefix, keys.end_of(prefix)):
            if not unused:
                return
            is_going = key in removed or key in self.moving
            record = readable(key, value) if not is_going else None
            if record is not None:
                unused.discard(record.due_ms)
        for due_ms in unused:
            batch.delete(keys.due_key(due_ms, zone, message))

    def delete_due_keys(self, batch: WriteBatch, zone: str, message: str, times: Set[int]) -> None:
        """As ``delete_unused_due_keys``, of a message that has no other recipients."""
        for due_ms in self._not_expected(zone, message, times):
            batch.delete(keys.due_key(due_ms, zone, message))

    def _not_expected(self, zone: str, message: str, times: Set[int]) -> set[int]:
        """Those of ``times`` whose ``due/`` key no commit under way writes; one of held mail is looked at again when it is written."""
        unused = {
            due_ms for due_ms in times if keys.due_key(due_ms, zone, message) not in self._expected
        }
        if keys.HELD_MS in times and keys.HELD_MS not in unused:
            self._doubtful.add(keys.due_key(keys.HELD_MS, zone, message))
        return unused

    def commit(self, batch: WriteBatch, woken: Sequence[QueuedRecipient]) -> CommitFuture:
        """Write ``batch``, which wakes ``woken``, and offer them to their windows; from now on nothing else moves them."""
        reservation = self._windows.reserve(woken)
        reservation.write(batch)
        moving = {keys.deferred_key(r.zone, r.message, r.address) for r in woken}
        self.moving |= moving
        batch.future.add_done_callback(partial(self._written, reservation, moving))
        return self._commits.submit(batch)

    def _written(
        self, reservation: Reservation, moving: Set[bytes], failure: QueueUnavailable | None
    ) -> None:
        self.moving -= moving
        if failure is None:
            reservation.commit()
        else:
            reservation.rollback()

    async def keep_rescuing(self) -> None:
        """Wake what is due later than any delay allows, now, and within an hour after the clock was set back: it was wrong.

        Only if a ``due/`` key was written while it was: mail for later may be a million keys.
        """
        try:
            await self._delete_unused_held()
        except QueueCorrupt as exc:
            log.critical("due keys of held recipients are not looked at, repair the queue: %s", exc)
        while True:
            self._most_ahead_ms = self._ahead_ms()
            try:
                count = await self._rescue(self._now() + self._longest_delay_ms)
            except QueueCorrupt as exc:
                log.critical("recipients that are due too late are not tried, repair the queue: %s", exc)
            else:
                if count:
                    log.warning(
                        "%d recipients were due after any possible delay, and are tried now", count
                    )
            is_set_back = False
            while not is_set_back:
                await asyncio.sleep(RESCUE_EVERY_S)
                is_set_back = self._ahead_ms() <= self._most_ahead_ms - SET_BACK_MS

    def _ahead_ms(self) -> float:
        """How far the system clock is ahead of one that is never set."""
        return self._now() - monotonic_s() * 1000

    async def _delete_unused_held(self) -> None:
        """Delete ``due/`` keys of held recipients that are gone: a command was interrupted."""
        start = keys.due_key(keys.HELD_MS, "", "")
        while found := list(islice(self._store.keys(start, keys.end_of(keys.DUE)), WAKE_MAX)):
            start = found[-1] + b"\x00"
            batch = WriteBatch()
            for due in found:
                _, zone, message = keys.parse_due(due)
                self.delete_unused_due_keys(batch, zone, message, {keys.HELD_MS}, ())
            await self.commit(batch, [])

    async def _rescue(self, latest_ms: int) -> int:
        """Wake what is due at ``latest_ms`` or later, except held mail and mail for later; returns how many."""

        def is_stranded(message: str, record: RecipientRecord) -> bool:
            is_late = latest_ms <= record.due_ms < keys.HELD_MS
            return is_late and not self.is_for_later(message, record)

        start, stop = keys.due_key(latest_ms, "", ""), keys.due_key(keys.HELD_MS, "", "")
        count = 0
        while True:
            turn = self._turn(self._store.keys(start, stop), is_stranded)
            if not turn.handled:
                return count
            await self.commit(turn.batch, turn.woken)
            start = turn.resume_at or start
            count += len(turn.woken)

    def is_for_later(self, message: str, record: RecipientRecord) -> bool:
        """True if the recipient waits for the time before which its submitter wants nothing sent."""
        if record.attempts:
            return False
        value = self._store.get(keys.meta_key(message))
        return value is not None and read_meta(value).options.not_before_ms == record.due_ms


@dataclass(slots=True)
class _Turn:
    """The recipients that one turn of the loop wakes, and their batch. ``resume_at``: where to read on; empty, where the turn began.

    ``left``: of each message that was read to its end, the due times of recipients that stay. None of a damaged
    one, whose keys stay: the next start may read it.
    """

    batch: WriteBatch = field(default_factory=WriteBatch)
    woken: list[QueuedRecipient] = field(default_factory=list)
    left: dict[tuple[str, str], Set[int] | None] = field(default_factory=dict)  # by zone and message
    handled: int = 0  # due keys
    read: int = 0  # recipients
    resume_at: bytes = b""


def readable(key: bytes, value: bytes) -> RecipientRecord | None:
    """The record, or None for a damaged one, which must not stop the others."""
    try:
        return read_recipient_record(value)
    except QueueCorrupt as exc:
        log.critical("%r is not sent to: %s", key, exc)
        return None
