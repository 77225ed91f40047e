"""Warm-up schedules."""

from datetime import date
from pathlib import Path

import pytest

from zonemta_py.config.warmup import WarmupSchedule, read_warmups
from zonemta_py.core.errors import ConfigError


def test_a_schedule(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "- {address: 203.0.113.7, begins: 2026-11-01, daily: [200, 500], provider: google}\n"
        '- {address: "2001:DB8::1", begins: 2026-11-30, daily: [1]}\n'
    )
    google, six = read_warmups(path)
    assert list(google.days()) == [(date(2026, 11, 1), 200), (date(2026, 11, 2), 500)]
    assert six == WarmupSchedule("2001:db8::1", date(2026, 11, 30), (1,), "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "expected a list"),
        ("- 3", "entry 1: expected the keys"),
        ("- {address: 1.2.3.4, begins: 2026-11-01}", "expected the keys address, begins and daily"),
        ("- {address: 1.2.3, begins: 2026-11-01, daily: [1]}", "entry 1: address"),
        ("- {address: 1.2.3.4, begins: soon, daily: [1]}", "found 'soon', expected a day"),
        ("- {address: 1.2.3.4, begins: 2026-11-01, daily: [x]}", "expected a list of numbers"),
        ("- [", "w.yaml"),
    ],
)
def test_a_bad_schedule(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_warmups(path)
