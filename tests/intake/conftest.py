"""Sessions must not notice where their queue is."""

from collections.abc import Iterator

import pytest

from tests.kit import listener as kit


@pytest.fixture(autouse=True, params=["direct", "linked"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once with the queue at hand, once over a receiver's link."""
    kit.way = request.param
    yield
    kit.way = "direct"
