"""The end-to-end suite once more, on relays of five processes, but for limits of providers, which seeds play in several."""

import pytest

from tests.kit.deadlines import scaled
from tests.kit.process_counts import run_with_processes

# Besides those, what names the processes of each relay, and would be the same once more.
LEFT_OUT = ("providers", "many_waiting", "moved_pools", "shaping_replay", "verified_domains", "warmup")
pytestmark = [pytest.mark.crash, pytest.mark.timeout(scaled(600))]


async def test_everything_in_several_processes(request: pytest.FixtureRequest) -> None:
    """What holds in one process holds in every arrangement. Tests with a parameter ``processes`` have had theirs."""
    suite = (
        "pytest", "-q", "-p", "no:cacheprovider", "-k", "not processes", "tests/end_to_end",
        *(f"--ignore=tests/end_to_end/test_{name}.py" for name in LEFT_OUT),
    )  # fmt: skip
    code, out = await run_with_processes(request.config.rootpath, *suite)
    assert code == 0, out.decode()[-5000:]
