"""Mail that is deferred and due again, and operations on all of it: ``python -m benchmarks.deferred [--messages N]…``.

A queue on LevelDB without SMTP. N messages to one recipient each, of 50 domains, are leased and deferred; all of them are due and
deferred again, ROUNDS times; then all are held, released and deleted. Prints the CPU of each step in ms a message.
``--cache``: bytes of messages in memory, so that a small number of messages is a deep queue.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time

from tests.kit.queue import Clock, accept, opened, settle
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import DeleteRequest, HoldRequest, MailRequest, ReleaseRequest
from zonemta_py.core.model import OutcomeKind
from zonemta_py.core.runtime import loop_factory
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.queue import Queue

DOMAINS = 50
ROUNDS = 2
CAMPAIGN = "sale"
HOUR_MS = 3_600_000


class Steps:
    """CPU by step, in ms a message."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self.found: dict[str, float] = {}

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        begun_s = process_time()
        yield
        self.found[name] = round((process_time() - begun_s) * 1000 / self._messages, 3)


async def _accept(queue: Queue, messages: int) -> None:
    for first in range(0, messages, 200):
        numbers = range(first, min(first + 200, messages))
        await asyncio.gather(
            *(accept(queue, f"u{n}@d{n % DOMAINS}.example", campaign=CAMPAIGN) for n in numbers)
        )


async def _defer(queue: Queue, clock: Clock, messages: int) -> None:
    """Lease and defer all."""

    async def one(lease: Lease) -> None:
        await queue.start(lease)
        await settle(queue, lease, OutcomeKind.DEFERRED, clock.ms + HOUR_MS)

    deferred = 0
    while deferred < messages:
        found = [queue.lease("default", f"d{n}.example", 1) for n in range(DOMAINS)]
        leases = [lease for lease in found if lease is not None]
        await asyncio.gather(*map(one, leases))
        deferred += len(leases)
        if not leases:
            await asyncio.sleep(0.001)  # the window is being filled


async def _wake(queue: Queue, clock: Clock) -> None:
    clock.ms += 2 * HOUR_MS
    while await queue.deferral.wake_due(clock.ms):
        pass


async def _operate(queue: Queue, request: MailRequest) -> None:
    async for _ in run_operation(Operations(queue), request):
        pass


async def measure(messages: int, cache_bytes: int) -> dict[str, float]:
    """The CPU of each step, in ms a message."""
    steps, clock = Steps(messages), Clock()
    with tempfile.TemporaryDirectory() as directory:
        async with opened(Path(directory), clock, store="leveldb", cache=cache_bytes) as queue:
            async with steps.step("accept"):
                await _accept(queue, messages)
            async with steps.step("defer"):
                await _defer(queue, clock, messages)
            for number in range(1, ROUNDS + 1):
                async with steps.step(f"wake {number}"):
                    await _wake(queue, clock)
                async with steps.step(f"defer again {number}"):
                    await _defer(queue, clock, messages)
            for request in (HoldRequest, ReleaseRequest, DeleteRequest):
                async with steps.step(request.__name__.removesuffix("Request").lower()):
                    await _operate(queue, request(campaign=CAMPAIGN))
    return steps.found


def main(arguments: Sequence[str]) -> None:
    """Print a line for each number of messages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, action="append", help="default: 2000 and 20000")
    parser.add_argument("--cache", type=int, default=1 << 20, help="bytes; the default is 1 MiB")
    options = parser.parse_args(arguments)
    for messages in options.messages or (2000, 20_000):
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            found = runner.run(measure(messages, options.cache))
        print(json.dumps({"messages": messages, "cpu_ms": found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
