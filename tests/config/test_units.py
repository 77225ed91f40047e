"""Durations, sizes, rates."""

from datetime import timedelta

import pytest

from zonemta_py.config.values import Rate, duration, moment, rate, size
from zonemta_py.core import clock


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("2d", 172800)]
)
def test_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("bad", [5, "5", "m", "5 minutes", "", None, "-5m", "5m!", True])
def test_no_duration(bad: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(bad)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64KiB", 65536), (1000, 1000), ("1GB", 10**9), ("1.5MiB", 1572864), ("0", 0)],
)
def test_size(text: object, size_bytes: int) -> None:
    assert size(text) == size_bytes


@pytest.mark.parametrize("bad", ["64 kilobytes", "-1", None, True, [1], "MiB"])
def test_no_size(bad: object) -> None:
    with pytest.raises(ValueError, match="size"):
        size(bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100/s", Rate(100, 1)),
        ("6000/m", Rate(6000, 60)),
        ("5/10s", Rate(5, 10)),
        ("1 / h", Rate(1, 3600)),
    ],
)
def test_rate(text: str, expected: Rate) -> None:
    assert rate(text) == expected


@pytest.mark.parametrize("bad", ["100", "0/s", "/s", "1/x", 100, "1.5/s"])
def test_no_rate(bad: object) -> None:
    with pytest.raises(ValueError, match="rate"):
        rate(bad)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-11-20", "2026-11-20T00:00:00+00:00"),
        ("2026-11-20T08:30", "2026-11-20T08:30:00+00:00"),
        ("2026-11-20T08:30:15Z", "2026-11-20T08:30:15+00:00"),
        ("2026-11-20T08:30+01:00", "2026-11-20T07:30:00+00:00"),
    ],
)
def test_moment(text: str, iso: str) -> None:
    assert moment(text).isoformat() == iso, "in UTC: directories of the event log are days of UTC"


def test_a_moment_ago() -> None:
    before, found, after = clock.now_ms(), moment("1d12h"), clock.now_ms()
    assert before <= (found + timedelta(hours=36)).timestamp() * 1000 <= after + 1


@pytest.mark.parametrize(
    "bad",
    ["", "yesterday", "2026-13-01", "2026-11-20T25:00", "-2d", "999999w", "0001-01-01T00:00+14:00", 5],
)
def test_no_moment(bad: object) -> None:
    with pytest.raises(ValueError, match="a time such as"):
        moment(bad)
