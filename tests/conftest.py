"""Fixtures of all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.kit")

from tests.kit.deadlines import eventually, until  # noqa: E402

__all__ = ["eventually", "until"]

settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# The clients of S3 require credentials; the server of the tests accepts any.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of this test's own."""
    return tmp_path
