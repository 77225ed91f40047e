"""A sink in a process of its own that writes its count into a file: ``counter PORT FILE``."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from zonemta_py.bench.sink import Sink
from zonemta_py.clock import wait_event
from zonemta_py.loop import loop_factory

EVERY_S = 0.01


async def run(port: int, counts: Path) -> None:
    """Count until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sink = Sink(count_recipients=False)
    await sink.start("127.0.0.1", port)
    print("ready", flush=True)
    shown = -1
    handle = os.open(counts, os.O_WRONLY | os.O_CREAT, 0o644)
    while not stop.is_set():
        if sink.tally.recipients != shown:
            shown = sink.tally.recipients
            os.pwrite(handle, b"%d" % shown, 0)  # counts only grow, so no shorter text is left over
        await wait_event(stop, EVERY_S)
    os.close(handle)
    await sink.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run(int(sys.argv[1]), Path(sys.argv[2])))
