"""Sessions must not notice where their queue is."""

from collections.abc import Iterator

import pytest

from tests.intake import relay_in


@pytest.fixture(autouse=True, params=["direct", "linked"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once with the queue at hand, once over a receiver's link."""
    relay_in.way = request.param
    yield
    relay_in.way = "direct"
