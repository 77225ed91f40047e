"""Reasons as text: a time of less than a second is that of a limit which comes and goes, and says nothing."""

import pytest

from zonemta_py.cli.common import reason_text
from zonemta_py.core import clock


@pytest.mark.parametrize(
    ("since_s", "left_s", "text"),
    [
        (0.0, 0.0, "provider rate, next now: it is 5/m"),
        (600.0, -3.0, "provider rate, for 10.0m, next now: it is 5/m"),
        (600.0, 600.9, "provider rate, for 10.0m, next in 10.0m: it is 5/m"),
    ],
)
def test_times(since_s: float, left_s: float, text: str) -> None:
    now_ms = clock.now_ms()
    why = {"name": "provider_rate", "reason": "it is 5/m", "key": ""}
    times = {"since_ms": now_ms - int(since_s * 1000), "until_ms": now_ms + int(left_s * 1000)}
    assert reason_text(why | times) == text
