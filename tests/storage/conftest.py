"""Fixtures of the stores that relays share: each test runs once on Redis and once on S3."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled
from tests.kit.servers import SHARED, queue_settings
from zonemta_py.storage import redis, s3_client
from zonemta_py.storage.open import open_shared_storage
from zonemta_py.storage.shared import SharedStorage


@pytest.fixture(params=SHARED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def storage(directory: Path, kind: str) -> Iterator[SharedStorage]:
    """Shared storage of this test's own, with short leases."""
    found = open_shared_storage(queue_settings(directory, kind, lease_s=scaled(0.6)))
    assert found is not None
    yield found
    found.close()


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients give up at once, instead of after seconds."""
    config = s3_client._CONFIG
    monkeypatch.setattr(redis, "RETRIES", 0)
    monkeypatch.setattr(s3_client, "_CONFIG", config.merge(type(config)(retries={"max_attempts": 0})))
