"""Fixtures and habits: no sleeps, a deadline on every wait."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

DEADLINE_S = 30.0

# What clients of S3 look for; the server of a test asks nobody who he is.
os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")


async def until(condition: Callable[[], object], what: str = "", deadline_s: float = DEADLINE_S) -> None:
    """Return once ``condition()`` holds; fail when it does not in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"timed out waiting for {what or condition}"
        await asyncio.sleep(0.01)


async def eventually(
    ask: Callable[[], Awaitable[bool]], what: str, deadline_s: float = DEADLINE_S
) -> None:
    """As ``until``, for a condition that must itself be waited for, as a reply must."""
    end = time.monotonic() + deadline_s
    while not await ask():
        assert time.monotonic() < end, f"timed out waiting for {what}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of this test's own."""
    return tmp_path


AsyncFactory = Callable[..., Awaitable[object]]
