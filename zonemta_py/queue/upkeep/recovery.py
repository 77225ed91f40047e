"""Recovery after a crash, before mail is accepted or sent.

Nothing is repaired, because each state that a crash can leave is a valid one: interrupted transactions are
marked uncertain, bodies without a marker are removed, removals are finished.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from zonemta_py.core.errors import LocalError, QueueCorrupt
from zonemta_py.events.schema import boot_of
from zonemta_py.queue.batch import WriteBatch
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import read_inflight
from zonemta_py.queue.group_commit import GroupCommit
from zonemta_py.queue.upkeep.cleanup import Cleanup
from zonemta_py.queue.upkeep.inspect import known_seq
from zonemta_py.queue.upkeep.interrupted import InterruptedDeliveries
from zonemta_py.storage.interface import Access, Store

FORMAT_VERSION = (
    b"6"  # with each change of ``records.FORMAT``: an earlier version would take new records for damage
)
IMPORTING = b"importing"  # instead of a version, during `queue import`
FORMATS = (None, b"1", b"2", b"3", b"4", b"5", FORMAT_VERSION)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """The queue's node (6 hex digits), how often it was opened, and the last message id issued."""

    node: str
    boot: int
    last_id: str


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
    boot = int(store.get(keys.META_BOOT) or b"0")
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
    return Identity(node, boot, last_id)


def new_node() -> bytes:
    """A name for a queue: 6 random hex digits."""
    return secrets.token_hex(3).encode()


async def recover(
    store: Store, commits: GroupCommit, cleanup: Cleanup, poison_after: int, now_ms: int
) -> None:
    """Handle the keys that the previous boot left.

    Raises QueueUnavailable, QueueCorrupt.
    """
    interrupted = InterruptedDeliveries(store, poison_after, now_ms)
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
