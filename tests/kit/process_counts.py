"""Runs a suite of this project again, on relays of five processes."""

import asyncio
import os
import sys
from pathlib import Path

from tests.kit.relay import PROCESS_COUNTS


async def run_with_processes(root: Path, *module: str) -> tuple[int, bytes]:
    """``python -m MODULE…`` with two receivers and two senders: its exit code and its output."""
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *module,
        cwd=root,
        env={**os.environ, PROCESS_COUNTS: "2/2"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await run.communicate()
    return run.returncode or 0, out
