"""What every process beside the queue's does the same way: logs, fault points, the loop, its end."""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from zonemta_py.core import faults
from zonemta_py.core.logs import configure_logs
from zonemta_py.core.loop import loop_factory

log = logging.getLogger(__name__)


def child_main(serve: Callable[..., Awaitable[None]]) -> None:
    """``LEVEL BEAT_S FD…``: run ``serve`` until it returns, then end at once.

    Signals are meant for the queue's process, which decides; a child ends when its link does.
    """
    configure_logs(sys.argv[1])
    if faults.VARIABLE in os.environ:
        faults.arm(os.environ[faults.VARIABLE])
    beat_s, fds = float(sys.argv[2]), [int(text) for text in sys.argv[3:]]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
            loop.add_signal_handler(number, lambda: None)
        gc.collect()
        gc.freeze()  # what lives now lives until the end
        gc.set_threshold(50_000, 20, 100)
        try:
            await serve(beat_s, *fds)
        except Exception:
            log.exception("this process failed")
            os._exit(1)
        # At once: to cancel what is in the middle of something, and wait for it, may take for ever.
        os._exit(0)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(run())
