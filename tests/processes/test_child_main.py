"""A child ends when its work does, whatever else goes on in it."""

import subprocess
import sys

from tests.kit.deadlines import scaled

STUBBORN = """
import asyncio, sys
from tests.kit.deadlines import scaled
from zonemta_py.processes.child_main import child_main

async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def serve(beat_s):
    serve.task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)

sys.argv = ["child", "warning", "5"]
child_main(serve)
"""


def test_a_task_that_will_not_be_cancelled() -> None:
    """It once kept a sender alive for hours after its relay was killed."""
    done = subprocess.run([sys.executable, "-c", STUBBORN], timeout=scaled(30), check=False)
    assert done.returncode == 0
