"""Sessions behave the same wherever their queue is."""

from collections.abc import Iterator

import pytest

from tests.kit import listener as kit


@pytest.fixture(params=["direct", "linked"])
def queue_client(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with the queue in this process, and over the link of a receiver process."""
    kit.way = request.param
    yield
    kit.way = "direct"
