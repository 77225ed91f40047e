"""A queue on a real store, and short forms of its calls."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.servers import LOCAL, SHARED, queue_settings
from zonemta_py.core.model import USUAL_KEY, Attempt, OutcomeKind, PoolKey
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.keys import (
    CLEANUP,
    DEFERRED,
    DUE,
    INFLIGHT,
    MESSAGE,
    OPEN,
    OUTBOX,
    SPILL,
    WAITING,
    end_of,
    is_chunk,
    owner_of,
)
from zonemta_py.queue.format.records import NO_OPTIONS, DeliveryOptions, Origin, RecipientRecord
from zonemta_py.queue.messages import Lease, MessageWriter
from zonemta_py.queue.outcome import NO_EFFECTS, AcceptedMessage, Outcome, SettleEffects
from zonemta_py.queue.queue import Queue, QueueOptions, Reports
from zonemta_py.queue.ready.streams import ONE_POOL, MailPools
from zonemta_py.queue.ready.windows import OnReady, ignore_ready
from zonemta_py.queue.upkeep.check import check_queue
from zonemta_py.queue.upkeep.held_mail import HeldMail
from zonemta_py.queue.upkeep.operator import Operator
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.storage.interface import Store
from zonemta_py.storage.memory import MemoryStore
from zonemta_py.storage.open import open_store

ORIGIN = Origin("127.0.0.1:2525", "127.0.0.1", "client.example", "", "ESMTP")
OK = Attempt("dot", 250, "2.0.0", "ok", mx="mx.example", mx_ip="127.0.0.1")
LATER = Attempt("rcpt", 451, "4.7.1", "later")
NO = Attempt("rcpt", 550, "5.1.1", "no such user")
HEADER = b"Subject: test\r\n"
SPACES = (MESSAGE, WAITING, DEFERRED, DUE, SPILL, INFLIGHT, OPEN, CLEANUP)


OWN, FALLBACK, PART = PoolKey("own"), PoolKey("fallback"), PoolKey("part")


class UserPools:
    """Mail of user a leaves from the pool ``own``, that of others after an attempt from ``fallback``.

    After several attempts it leaves from ``part``, a part of that.
    """

    def pool_key(self, zone: str, destination: str, record: RecipientRecord) -> PoolKey:
        """See ``MailPools``."""
        if record.submitter == "a" or not record.attempts:
            return OWN if record.submitter == "a" else USUAL_KEY
        return FALLBACK if record.attempts == 1 else PART

    def share_divisor(self, pool_key: PoolKey) -> int:
        """See ``MailPools``."""
        return 2 if pool_key == PART else 1


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


KINDS = [*LOCAL, *SHARED]
kind = "leveldb"  # the store of queues that do not say; the fixture each_store changes it
_in_memory: dict[Path, MemoryStore] = {}  # what a restart finds again


def make_store(directory: Path, kind: str) -> Store:
    """The store of ``directory``, made or opened again."""
    if kind == "memory":
        return _in_memory.setdefault(directory, MemoryStore())
    return open_store(queue_settings(directory, kind))


def make_queue(
    directory: Path,
    clock: Callable[[], int],
    *,
    window: int = 1000,
    cache: int = 1 << 20,
    store: str = "",
    poison_after: int = 3,
    on_ready: OnReady = ignore_ready,
    reports: Reports | None = None,
) -> Queue:
    """A queue whose destinations are recipient domains."""
    opened = make_store(directory, store or kind)
    return Queue(
        opened,
        begin_boot(opened),
        QueueOptions(window=window, body_cache_bytes=cache, poison_after=poison_after),
        lambda zone, domain: domain,
        reports=reports,
        on_ready=on_ready,
        now=clock,
    )


def held_mail(queue: Queue) -> HeldMail:
    """What is held for suspensions."""
    return HeldMail(queue, Operator(queue))


async def begin(queue: Queue, *, was_killed: bool = True) -> None:
    """Recover, and wait until the start-up scan is over."""
    await queue.recover(was_killed=was_killed)
    await queue.begin()
    await held_mail(queue).start()
    scans = [task for task in queue.background.tasks if task.get_name().startswith("scan-")]
    if scans:
        await asyncio.wait(scans)


@asynccontextmanager
async def opened(
    directory: Path,
    clock: Callable[[], int] | None = None,
    pools: MailPools = ONE_POOL,
    **options: Any,
) -> AsyncIterator[Queue]:
    """A running queue, closed in order at the end."""
    queue = make_queue(directory, clock or Clock(), **options)
    queue.windows.set_pools(pools)
    try:
        await begin(queue)
        yield queue
    finally:
        await queue.close()


async def accept(
    queue: Queue,
    *addresses: str,
    body: bytes = b"body\r\n",
    zone: str = "default",
    sender: str = "s@sender.example",
    user: str = "",
    tenant: str = "",
    options: DeliveryOptions = NO_OPTIONS,
    hold: str = "",
    campaign: str = "",
) -> str:
    """Accept a message to ``addresses``; ``zone`` for all, or ``address|zone`` for one."""
    recipients = []
    for text in addresses:
        address, _, own = text.partition("|")
        recipients.append(NewRecipient(address, address.rpartition("@")[2], own or zone))
    writer, origin = queue.open_message(), ORIGIN._replace(user=user, tenant=tenant)
    await write(writer, body)
    new = NewMessage(
        sender, HEADER, recipients, origin, "<id@here>", options=options, hold=hold, campaign=campaign
    )
    await queue.accept(writer, new)
    return writer.id


def spoil_chunk(store: Store, key: bytes, value: bytes | None) -> None:
    """Put ``value`` in the place of a chunk that is there; None: remove it."""
    steps = [[(key, None), (b"meta/spoiled", b"")], [(key, value), (b"meta/spoiled", None)]]
    if store.is_remote():
        del steps[0]  # a store of objects deletes later, which could remove the new value
    for ops in steps:
        store.write(store.batch(ops, sync=True))


async def write(writer: MessageWriter, data: bytes) -> None:
    """Write ``data`` and wait until all whole chunks of it are on disk."""
    writer.write(data)
    for batch in list(writer._ahead):
        await batch


def lease(queue: Queue, domain: str, most: int = 100, zone: str = "default") -> Lease:
    """The next lease, which must be there."""
    found = queue.lease(zone, domain, most)
    assert found is not None
    return found


async def settle(
    queue: Queue, held: Lease, kind: OutcomeKind, due_ms: int = 0, report: AcceptedMessage | None = None
) -> None:
    """Give every recipient of a lease the same fate."""
    attempt = {OutcomeKind.DELIVERED: OK, OutcomeKind.DEFERRED: LATER}.get(kind, NO)
    after = SettleEffects([report], report.message) if report else NO_EFFECTS
    await queue.settle(held, outcomes(held, kind, attempt, due_ms), after)


def outcomes(
    held: Lease, kind: OutcomeKind, attempt: Attempt = OK, due_ms: int = 0
) -> Sequence[Outcome]:
    """The same outcome for every recipient of a lease."""
    return [Outcome(recipient, kind, attempt, due_ms) for recipient in held.recipients]


def everything(store: Store) -> list[bytes]:
    """Every key that is not meta or outbox."""
    return [key for space in SPACES for key in store.keys(space, end_of(space))]


def unexplained(store: Store) -> list[bytes]:
    """As ``everything``, without bodies that are being removed: a stop does not wait for that."""
    left = everything(store)
    going = {owner_of(key) for key in left if key.startswith(CLEANUP)}
    return [k for k in left if not (k.startswith(CLEANUP) or (is_chunk(k) and owner_of(k) in going))]


def problems(store: Store) -> list[str]:
    """What the queue check finds."""
    return [problem for problem in check_queue(store) if problem]


def events(store: Store) -> list[dict[str, object]]:
    """The events in the outbox, in order."""
    from zonemta_py.core.codec import from_json

    return [
        from_json(line) for _, value in store.scan(OUTBOX, end_of(OUTBOX)) for line in value.splitlines()
    ]
