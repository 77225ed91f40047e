"""Warm-up schedules from YAML: how much an IP address of the sender may send on each of its first days. Pure.

    - {address: 203.0.113.7, begins: 2026-11-01, daily: [200, 500, 1000, 5000], provider: google}

Without ``provider`` the numbers are for all mail of the address. After the last day there is no limit.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_document, plain, read_text, to_yaml
from zonemta_py.config.providers import ProviderTable
from zonemta_py.config.reader import Reader
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import meant

LATEST = date(2999, 12, 31)  # as the first day: the calendar of Python ends with the year 9999
LIST = "entries"  # the file is a list; its entries are entries[0], entries[1], … in errors


@dataclass(frozen=True, slots=True)
class WarmupSchedule:
    """The schedule of one address; ``provider`` is empty when it is for all mail. ``where``: file, line and entry."""

    address: str
    begins: date
    daily: tuple[int, ...]
    provider: str = ""
    where: str = field(default="", compare=False)

    def days(self) -> Iterator[tuple[date, int]]:
        """Each day with the number of attempts that it allows."""
        for number, allowed in enumerate(self.daily):
            yield self.begins + timedelta(days=number), allowed

    def __str__(self) -> str:
        return f"{self.address} for {self.provider or 'all mail'}"


@dataclass(frozen=True, slots=True)
class WarmupEntry:
    """One entry as a file has it."""

    address: str | None = None
    begins: date | None = None
    daily: tuple[int, ...] = ()
    provider: str | None = None


def read_warmups(path: Path) -> list[WarmupSchedule]:
    """The schedules of a file. Raises ConfigError with file, line and key."""
    return parse_warmups(read_text(path), path, may_be_empty=False)[0]


def parse_warmups(
    text: str, path: Path, *, may_be_empty: bool = True
) -> tuple[list[WarmupSchedule], Reader]:
    """As ``read_warmups``, of a text that ``path`` names in errors."""
    kind = tuple[WarmupEntry, ...]
    entries, reader = parse_document(text, path, kind, LIST, may_be_empty=may_be_empty)
    found: dict[tuple[str, str], WarmupSchedule] = {}
    for number, entry in enumerate(entries):
        key = f"{LIST}[{number}]"
        schedule = _schedule(entry, key, reader)
        before = found.setdefault((schedule.address, schedule.provider), schedule)
        if before is not schedule:
            reader.complain(key, f"{schedule} has a schedule already: {before.where}")
    return list(found.values()), reader


def _schedule(entry: WarmupEntry, key: str, reader: Reader) -> WarmupSchedule:
    if entry.address is None:
        reader.complain(f"{key}.address", "an IP address is needed")
    try:
        address = str(ip_address(entry.address))
    except ValueError:
        reader.complain(f"{key}.address", f"found '{entry.address}', expected an IP address")
    if entry.begins is None:
        reader.complain(f"{key}.begins", "the first day is needed, such as 2026-11-01")
    if entry.begins > LATEST:
        reader.complain(f"{key}.begins", f"found {entry.begins}, expected {LATEST} or earlier")
    if not entry.daily:
        reader.complain(f"{key}.daily", "a list of numbers of recipients is needed, one a day")
    for day, allowed in enumerate(entry.daily):
        if allowed < 1:
            reader.complain(f"{key}.daily[{day}]", f"found {allowed}, expected at least 1 recipient")
    if entry.provider is not None and not entry.provider.strip():
        reader.complain(f"{key}.provider", "a name is needed; absent: all mail of the address")
    where = f"{reader.path}:{reader.line_of(key)}: {key}"
    return WarmupSchedule(address, entry.begins, entry.daily, entry.provider or "", where)


def check_warmups(
    schedules: Iterable[WarmupSchedule], addresses: Collection[str], table: ProviderTable
) -> None:
    """Raises ConfigError for an address that ``addresses`` lack, or a provider that cannot be met: nothing would be limited.

    ``addresses``: those of all pools, in any form.
    """
    known = {_normal(each) for each in addresses}
    for schedule in schedules:
        if schedule.address not in known:
            raise ConfigError(
                f"{schedule.where}.address: found '{schedule.address}', which is in no pool; {meant(schedule.address, known)}"
            )
        problem = table.problem_of(schedule.provider) if schedule.provider else ""
        if problem:
            raise ConfigError(f"{schedule.where}.provider: {problem}")


def falling(schedules: Iterable[WarmupSchedule]) -> Iterator[str]:
    """A warning for each schedule with a day that allows less than the one before."""
    for schedule in schedules:
        for number, (before, after) in enumerate(pairwise(schedule.daily), 2):
            if after < before:
                yield f"{schedule.where}.daily: day {number} allows {after}, fewer than the {before} of the day before"
                break


def _normal(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address


# ---- Edits of a file of schedules: one more entry, or another one in its place.
#
# What else the file has stays as it is, comments too, unless it is written as one flow list (``[{...}, ...]``).


def entry_of(schedule: WarmupSchedule) -> dict[str, Any]:
    """The entry of ``schedule``, as plain values."""
    entry: dict[str, Any] = {
        "address": schedule.address, "begins": schedule.begins, "daily": list(schedule.daily),
    }  # fmt: skip
    return entry | ({"provider": schedule.provider} if schedule.provider else {})


def with_entry(text: str, path: Path, schedule: WarmupSchedule, *, replace: bool) -> str:
    """``text`` of the file ``path`` with the entry for ``schedule``.

    Raises ConfigError when there is one for the same address and provider, unless ``replace``, or when the file cannot
    be used.
    """
    found, reader = parse_warmups(text, path)
    keys = [(each.address, each.provider) for each in found]
    key = schedule.address, schedule.provider
    number = keys.index(key) if key in keys else len(found)
    if number < len(found) and not replace:
        raise ConfigError(
            f"{found[number].where}: {found[number]} has a schedule already; --force replaces it"
        )
    if not found:
        added = to_yaml([entry_of(schedule)])
        return added if text.strip() in ("", "[]") else f"{text.rstrip()}\n{added}"
    expected = [*found[:number], schedule, *found[number + 1 :]]
    edited = _edited(text.splitlines(), reader, number, len(found), schedule)
    if _is(edited, path, expected):
        return edited
    values = plain(text, str(path))
    values[number:] = [entry_of(schedule), *values[number + 1 :]]
    return to_yaml(values)


def _edited(lines: list[str], reader: Reader, number: int, count: int, schedule: WarmupSchedule) -> str:
    """The lines with the entry ``number``, if each entry begins with a dash on a line of its own."""
    starts = [reader.line_of(f"{LIST}[{each}]") - 1 for each in range(count)]
    indent = " " * (len(lines[starts[0]]) - len(lines[starts[0]].lstrip()))
    own = [indent + line for line in to_yaml([entry_of(schedule)]).splitlines()]
    start = starts[number] if number < count else _end(lines, 0, len(lines))
    next_start = starts[number + 1] if number + 1 < count else len(lines)
    end = _end(lines, start, next_start) if number < count else start
    return "\n".join([*lines[:start], *own, *lines[end:]]) + "\n"


def _end(lines: list[str], start: int, limit: int) -> int:
    """The line after the last one of ``lines[start:limit]`` that is neither empty nor a comment."""
    while limit > start and (not lines[limit - 1].strip() or lines[limit - 1].lstrip().startswith("#")):
        limit -= 1
    return limit


def _is(text: str, path: Path, expected: list[WarmupSchedule]) -> bool:
    try:
        return parse_warmups(text, path)[0] == expected
    except ConfigError:
        return False
