"""A queue that an earlier version wrote is imported, is consistent, and is delivered.

``golden/queue-4.archive`` was made with ``zonemta queue export`` by the version before the packages were
renamed: three messages to 12 deferred recipients, and one of 77 KB with a waiting recipient.
"""

from pathlib import Path

from tests.kit.queue import Clock, begin, make_store, outcomes, problems
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.queue.upkeep.transfer import import_queue

ARCHIVE = Path(__file__).parents[2] / "golden" / "queue-4.archive"
RECORDS = 43


async def test_it_is_read_and_delivered(directory: Path, each_store: str) -> None:
    store = make_store(directory, each_store)
    assert import_queue(store, ARCHIVE, lambda count: None) == RECORDS
    assert problems(store) == []
    queue = Queue(store, begin_boot(store), QueueOptions(), lambda zone, domain: domain, now=Clock())
    await begin(queue)
    await flush(queue)
    delivered: dict[str, int] = {}
    while True:
        found = [queue.lease("default", f"d{n}.example", 100) for n in range(10)]
        leases = [lease for lease in found if lease is not None]
        if not leases:
            break
        for lease in leases:
            size_bytes = sum([len(chunk) async for chunk in queue.bodies.stream(lease.active)])
            delivered |= {recipient.address: size_bytes for recipient in lease.recipients}
            await queue.settle(lease, outcomes(lease, OutcomeKind.DELIVERED))
    await queue.close()
    expected = {f"u{n}@d{n % 3}.example" for n in range(1, 13)} | {"big@d9.example"}
    assert set(delivered) == expected
    assert delivered["big@d9.example"] == 78_000
