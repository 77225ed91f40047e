"""What views of a full queue cost: ``python benchmarks/views.py [RECIPIENTS]``.

Fills a queue, starts a relay on it, and prints how long the census takes to count it, and then for ``queue summary``, ``/metrics``, the page and
1,000 rows of ``queue list`` the time until the answer, and the longest turn of the relay's loop meanwhile.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import run_operation
from zonemta_py.admin.requests import ListRequest, Request, SummaryRequest
from zonemta_py.bench.setup import fill_queue
from zonemta_py.config.load import parse_config
from zonemta_py.relay.relay import Relay

REPEATS = 5
CONFIG = """
hostname: relay.example
listeners: []
zones: {default: {transport: dequeue}, blocked: {transport: dequeue}}
queue: {directory: queue, min_free_disk: 1MiB}
events: {directory: events}
admin: {address: "127.0.0.1:0"}
processes: {receivers: 0, senders: 0}
"""


async def longest_turn(work: Awaitable[object]) -> tuple[float, float]:
    """How long ``work`` takes, and the longest time for which the loop did nothing else (ms)."""
    longest_s, done = 0.0, False

    async def watch() -> None:
        nonlocal longest_s
        while not done:
            began_s = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began_s)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    began_s = time.perf_counter()
    await work
    took_s = time.perf_counter() - began_s
    done = True
    await watching
    return took_s * 1000, longest_s * 1000


async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """Print medians."""
    found = sorted([await longest_turn(work()) for _ in range(REPEATS)])
    turns = sorted(turn for _, turn in found)
    print(f"{name:<12} {found[REPEATS // 2][0]:8.2f} ms, longest turn {turns[REPEATS // 2]:.2f} ms")


async def main(recipients: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        config = parse_config(CONFIG, Path(directory) / "zonemta.yaml")
        fill_queue(config.queue.directory, recipients)
        relay = Relay(config)
        began_s = time.perf_counter()
        await relay.start()
        queue, operations = relay.queue, Operations(relay.queue)
        while not queue.census.is_complete:
            await asyncio.sleep(0.05)
        print(
            f"counted after {time.perf_counter() - began_s:.1f} s, {sum(map(sum, queue.census.zones().values())) // 2:,} recipients"
        )
        while queue.scanning:
            await asyncio.sleep(0.05)

        async def answer(request: Request) -> None:
            async for _ in run_operation(operations, request):
                pass

        assert relay.admin is not None and relay.admin.server is not None
        base = f"http://127.0.0.1:{relay.admin.server.ports[0]}"
        async with aiohttp.ClientSession(base, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:

            async def metrics() -> None:
                async with client.get("/metrics") as response:
                    await response.read()

            async def page() -> None:
                async with client.get("/") as response:
                    assert "Destinations" in await response.text()

            async with client.get(relay.admin.new_login()["urls"][0]):
                await metrics()
            await measure("summary", lambda: answer(SummaryRequest()))
            await measure("metrics", metrics)
            await measure("page", page)
            await measure("list, 1000", lambda: answer(ListRequest(limit=1000)))
        await relay.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
