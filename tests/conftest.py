"""Fixtures of all tests."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

KIT = Path(__file__).with_name("kit")
pytest.register_assert_rewrite(*(f"tests.kit.{path.stem}" for path in KIT.glob("[!_]*.py")))

from tests.kit.deadlines import scale, slowness  # noqa: E402 - its asserts are rewritten only if that is registered before

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
def directory(tmp_path: Path) -> Path:
    """A directory of this test's own."""
    return tmp_path


def pytest_report_header() -> str:
    """How much slower than usual this machine is."""
    return f"deadlines: slowness {slowness():.1f}, with the load of the moment {scale():.1f}"


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Scale the time limit of a whole test; it only ends a test whose own deadlines do not."""
    marker = item.get_closest_marker("timeout")
    limit_s = marker.args[0] if marker else float(item.config.getini("timeout"))
    item.add_marker(pytest.mark.timeout(limit_s * max(2.0, scale())), append=False)
    return (yield)
