"""The end-to-end suite once more, on relays of five processes, but for what only the process of the queue does. Seeds play that."""

import pytest

from tests.kit.deadlines import scaled
from tests.kit.process_counts import run_with_processes

# What the process of the queue decides alone.
SAME = (
    "addresses", "deliverability", "library", "many_waiting", "memory", "moved_pools", "providers", "shaping_replay",
    "suspended_sending", "troubleshooting", "verified_domains", "warmup",
)  # fmt: skip
pytestmark = [pytest.mark.crash, pytest.mark.timeout(scaled(600))]


async def test_everything_in_several_processes(request: pytest.FixtureRequest) -> None:
    """What holds in one process holds in every arrangement. Tests with a parameter ``processes`` have had theirs."""
    suite = (
        "pytest", "-q", "-p", "no:cacheprovider", "-k", "not processes", "tests/end_to_end",
        *(f"--ignore=tests/end_to_end/test_{name}.py" for name in SAME),
    )  # fmt: skip
    code, out = await run_with_processes(request.config.rootpath, *suite)
    assert code == 0, out.decode()[-5000:]
