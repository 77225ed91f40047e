"""A suspended tenant with much queued mail: ``python benchmarks/suspended.py [RECIPIENTS]``.

Prints how many of its recipients leave while it is suspended, how long it takes to hold them, and to send them all
after resume.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import ResumeRequest
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.queue import Queue
from zonemta_py.relay.relay import Relay

PER_MESSAGE = 50
DOMAINS = 500
CONFIG = """
hostname: relay.example
listeners: []
tenants: {acme: {domains: [acme.example]}}
zones: {default: {transport: blackhole}}
queue: {directory: queue, min_free_disk: 1MiB}
events: {directory: events}
processes: {receivers: 0, senders: 0}
"""
ORIGIN = Origin("", "192.0.2.1", "", "ann", "ESMTPA", "acme")


async def fill(config: Config, recipients: int) -> None:
    """Accept the mail of the tenant, and suspend it."""
    queue = open_queue(config)
    await queue.recover()
    await queue.begin()
    for number in range(recipients // PER_MESSAGE):
        domain = f"d{number % DOMAINS}.example"
        to = [NewRecipient(f"u{n}@{domain}", domain, "default") for n in range(PER_MESSAGE)]
        writer = queue.open_message()
        writer.write(b"hello\r\n")
        await queue.accept(writer, NewMessage("s@acme.example", b"Subject: x\r\n", to, ORIGIN))
    await queue.suspended.suspend("acme", "benchmark")
    await queue.close()


def count(queue: Queue, space: bytes) -> int:
    """How many keys ``space`` has."""
    return sum(1 for _ in queue.store.keys(space, keys.end_of(space)))


async def main(recipients: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = parse_config(CONFIG, Path(directory) / "zonemta.yaml")
        await fill(config, recipients)
        relay = Relay(config)
        await relay.start()
        queue, began_s = relay.queue, time.monotonic()
        while count(queue, keys.WAITING):
            await asyncio.sleep(0.5)
        held = count(queue, keys.DEFERRED)
        print(f"held after {time.monotonic() - began_s:.1f} s: {held:,}; left: {recipients - held:,}")
        began_s = time.monotonic()
        async for _ in run_operation(Operations(queue), ResumeRequest("acme")):
            pass
        print(f"released after {time.monotonic() - began_s:.1f} s")
        while count(queue, keys.WAITING) + count(queue, keys.DEFERRED):
            await asyncio.sleep(0.5)
        print(f"all sent after {time.monotonic() - began_s:.1f} s")
        await relay.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
