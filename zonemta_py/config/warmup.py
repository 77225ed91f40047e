"""Warm-up schedules from YAML: how much an IP address of the sender may send on each of its first days. Pure.

    - {address: 203.0.113.7, begins: 2026-11-01, daily: [200, 500, 1000, 5000], provider: google}

Without ``provider`` the numbers are for all mail of the address. After the last day there is no limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from zonemta_py.config.load import load_plain
from zonemta_py.core.errors import ConfigError

KEYS = {"address", "begins", "daily", "provider"}


@dataclass(frozen=True, slots=True)
class WarmupSchedule:
    """The schedule of one address; ``provider`` is empty when it is for all mail."""

    address: str
    begins: date
    daily: tuple[int, ...]
    provider: str = ""

    def days(self) -> Iterator[tuple[date, int]]:
        """Each day with the number of attempts that it allows."""
        for number, allowed in enumerate(self.daily):
            yield self.begins + timedelta(days=number), allowed


def read_warmups(path: Path) -> list[WarmupSchedule]:
    """The schedules of a file. Raises ConfigError, which names the entry and the problem."""
    found = load_plain(path)
    if not isinstance(found, list):
        raise ConfigError(f"{path}: expected a list of entries with {', '.join(sorted(KEYS))}")
    return [_entry(each, f"{path}: entry {number}") for number, each in enumerate(found, 1)]


def _entry(found: Any, where: str) -> WarmupSchedule:
    if not isinstance(found, dict) or not {"address", "begins", "daily"} <= set(found) <= KEYS:
        raise ConfigError(f"{where}: expected the keys address, begins and daily, perhaps provider")
    try:
        address = str(ip_address(str(found["address"])))
    except ValueError as exc:
        raise ConfigError(f"{where}: address: {exc}") from exc
    begins, daily = found["begins"], found["daily"]
    if type(begins) is not date:
        raise ConfigError(f"{where}: begins: found '{begins}', expected a day such as 2026-11-01")
    if not isinstance(daily, list) or not daily or not all(type(n) is int and n >= 0 for n in daily):
        raise ConfigError(f"{where}: daily: expected a list of numbers of messages, one a day")
    return WarmupSchedule(address, begins, tuple(daily), str(found.get("provider", "")))
