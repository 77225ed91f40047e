"""One conformance suite for every store: tests that use ``each_store`` run once on each."""

from collections.abc import Iterator

import pytest

from tests.kit import queue as kit


@pytest.fixture(params=kit.KINDS)
def each_store(request: pytest.FixtureRequest) -> Iterator[str]:
    kit.kind = request.param
    yield request.param
    kit.kind = "leveldb"
