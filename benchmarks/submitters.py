"""CPU of leases at a destination where many tenants have spilled mail: ``python benchmarks/submitters.py [TENANTS]``.

Each tenant has twenty messages there; a third of the tenants have weight 1, 2 and 5. Prints the time for each
message accepted and leased, and the share of each weight, of what it should be.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import TENANT_FLOW, Origin
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.storage.open import open_store

WINDOW = 50_000  # the default of queue.ready_window
MESSAGES = 20  # of each tenant
WEIGHTS = (1, 2, 5)
TURNS = 3  # of every tenant
DELIVERED = Attempt("dot", 250, "2.0.0", "ok")


async def accept(queue: Queue, tenants: int) -> None:
    """Accept the mail of all tenants, mixed."""
    for number in range(MESSAGES):
        commits = []
        for tenant in range(tenants):
            to = NewRecipient(f"u{number}@x.example", "x.example", "default")
            origin = Origin("", "192.0.2.1", "", f"user{tenant}", "ESMTPA", f"t{tenant}")
            message = NewMessage("s@s.example", b"Subject: x\r\n", [to], origin)
            commits.append(queue.accept(queue.open_message(), message))
        for commit in commits:
            await commit


async def lease(queue: Queue, count: int) -> Counter[int]:
    """Deliver ``count`` messages; how many were of each weight."""
    found = Counter[int]()
    for _ in range(count):
        held = None
        while held is None:  # a refill reads a limited number of keys
            held = queue.lease("default", "x.example", 10)
            await asyncio.sleep(0)
        found[WEIGHTS[int(held.active.meta.origin.tenant[1:]) % len(WEIGHTS)]] += 1
        outcomes = [Outcome(each, OutcomeKind.DELIVERED, DELIVERED) for each in held.recipients]
        await queue.settle(held, outcomes)
    return found


async def main(tenants: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(QueueSettings(Path(directory), "memory"))
        queue = Queue(store, begin_boot(store), QueueOptions(window=WINDOW), lambda zone, domain: domain)
        await queue.recover()
        await queue.begin()
        weights = [WEIGHTS[tenant % len(WEIGHTS)] for tenant in range(tenants)]
        queue.windows.set_weights(
            {f"{TENANT_FLOW}t{tenant}": weight for tenant, weight in enumerate(weights)}
        )
        began_s = time.process_time()
        await accept(queue, tenants)
        accepted_s, count = time.process_time(), TURNS * sum(weights)
        found = await lease(queue, count)
        leased_s = time.process_time()
        await queue.close()
    print(f"accept: {(accepted_s - began_s) / (tenants * MESSAGES) * 1e6:.0f} µs a message")
    print(f"lease and settle: {(leased_s - accepted_s) / count * 1e6:.0f} µs a message")
    for weight in WEIGHTS:
        share = weights.count(weight) * weight / sum(weights)
        print(f"weight {weight}: {found[weight] / count / share:.3f} of its share")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
