"""The crash runner on a relay of five processes: the same promise, and all end with the relay."""

import asyncio
import json
import os
import sys

import pytest

from tests.end_to_end.harness import ARRANGEMENT

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


async def test_kills(request: pytest.FixtureRequest) -> None:
    """A round of kills at named points and random moments, under load."""
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.crash",
        "--kills=25",
        cwd=request.config.rootpath,
        env={**os.environ, ARRANGEMENT: "2/2"},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await run.communicate()
    last = json.loads(out.splitlines()[-1])
    assert run.returncode == 0, out.decode()
    assert last["kills"] == 25
    assert last["acknowledged"] > 0
