"""One conformance suite for every store: tests that use ``each_store`` run once on each."""

from collections.abc import Iterator

import pytest

from tests.queue import harness


@pytest.fixture(params=harness.KINDS)
def each_store(request: pytest.FixtureRequest) -> Iterator[str]:
    harness.kind = request.param
    yield request.param
    harness.kind = "leveldb"
