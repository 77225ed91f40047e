"""The crash runner on a relay of five processes: the same guarantees, and all end with the relay."""

import json

import pytest

from tests.kit.process_counts import run_with_processes

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]


async def test_kills(request: pytest.FixtureRequest) -> None:
    """A round of kills at named points and random moments, under load."""
    code, out = await run_with_processes(request.config.rootpath, "tests.crash", "--kills=10")
    last = json.loads(out.splitlines()[-1])
    assert code == 0, out.decode()
    assert last["kills"] >= 10
    assert last["acknowledged"] > 0
