"""A file of warm-up schedules with one more entry, or with another one in its place. Pure.

What else the file has stays as it is, comments too, unless it is written as one flow list (``[{...}, ...]``).
"""

from pathlib import Path
from typing import Any

from zonemta_py.config.load import plain, to_yaml
from zonemta_py.config.reader import Reader
from zonemta_py.config.warmup import LIST, WarmupSchedule, parse_warmups
from zonemta_py.core.errors import ConfigError


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
