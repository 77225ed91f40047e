"""The end-to-end suite once more, on relays of five processes."""

import asyncio
import os
import sys

import pytest

from tests.end_to_end.harness import ARRANGEMENT

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


async def test_everything_in_several_processes(request: pytest.FixtureRequest) -> None:
    """What holds in one process holds in every arrangement."""
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/end_to_end",
        cwd=request.config.rootpath,
        env={**os.environ, ARRANGEMENT: "2/2"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await run.communicate()
    assert run.returncode == 0, out.decode()[-5000:]
