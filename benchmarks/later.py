"""A list that is to be sent later: ``python benchmarks/later.py [RECIPIENTS]``.

Accepts it, 50 recipients a message, and prints what it costs while it waits, and how soon after its time the first
and the last recipient can be leased.
"""

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from zonemta_py.config.schema import QueueSettings
from zonemta_py.core import clock
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.keys import DUE, end_of
from zonemta_py.queue.format.records import DeliveryOptions, Origin
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.storage.open import open_store

PER_MESSAGE = 50
ORIGIN = Origin("", "192.0.2.1", "", "news", "ESMTPA")


def resident_mib() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


async def accept(queue: Queue, recipients: int, due_ms: int) -> None:
    """Accept messages to many domains, all for ``due_ms``."""
    options = DeliveryOptions(due_ms)
    for message in range(recipients // PER_MESSAGE):
        domain = f"d{message % 500}.example"
        to = [NewRecipient(f"u{n}@{domain}", domain, "default") for n in range(PER_MESSAGE)]
        new = NewMessage("s@s.example", b"Subject: x\r\n", to, ORIGIN, options=options)
        writer = queue.open_message()
        writer.write(b"hello\r\n")
        await queue.accept(writer, new)


async def main(recipients: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        settings = QueueSettings(Path(directory), durability="none")
        store = open_store(settings)
        queue = Queue(store, begin_boot(store), QueueOptions(sync=False), lambda zone, domain: domain)
        await queue.recover()
        await queue.begin()
        before_mib, due_ms = resident_mib(), clock.now_ms() + 30_000 + recipients // 20
        await accept(queue, recipients, due_ms)
        print(f"{recipients:,} recipients accepted; memory {before_mib:.0f} → {resident_mib():.0f} MiB")
        began_s, wait_s = time.process_time(), (due_ms - clock.now_ms()) / 1000 - 1
        await asyncio.sleep(wait_s)
        used_s = time.process_time() - began_s
        print(f"CPU in {wait_s:.0f} s of waiting: {used_s * 1000:.0f} ms")
        window = queue.windows.zone("default")
        while not window.destinations():
            await asyncio.sleep(0.001)
        print(f"first recipient ready {clock.now_ms() - due_ms} ms after its time")
        while next(queue.store.keys(DUE, end_of(DUE)), None) is not None:
            await asyncio.sleep(0.05)
        print(f"all ready {(clock.now_ms() - due_ms) / 1000:.1f} s after it")
        await queue.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
