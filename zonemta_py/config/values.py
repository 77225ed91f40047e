"""Types of configuration values and their parsers: durations, sizes, rates, bounded numbers. Addresses are in ``endpoints.py``.

Each parser takes a YAML scalar (text or a number) and returns a value, or raises ValueError with
a text that says what is allowed.
"""

import re
from dataclasses import field
from datetime import UTC, date, datetime
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, NamedTuple, NewType

import yaml

from zonemta_py.config.endpoints import (
    Address,
    AdminAddress,
    HostPort,
    NameServer,
    Smarthost,
    address,
    admin_address,
    host_port,
    smarthost,
)
from zonemta_py.core import clock

Seconds = NewType("Seconds", float)
Size = NewType("Size", int)  # bytes
Percent = NewType("Percent", int)
ExitCode = NewType("ExitCode", int)
Word = NewType("Word", str)  # of a list that may be given as its only item
ProcessCount = NewType("ProcessCount", int)

AUTO = ProcessCount(-1)  # chosen by the number of cores
PROCESSES_MAX = 64

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


def choice(default: str, *others: str, later: tuple[str, ...] = ()) -> Any:
    """A field with a closed set of words; ``later`` names words that this version refuses."""
    return field(default=default, metadata={"choices": (default, *others), "later": later})


def hidden(default: Any) -> Any:
    """A field that is not a key: the loader fills it in."""
    return field(default=default, metadata={"hidden": True}, compare=False, repr=False)


def number(default: int | None, least: int = 1, most: int = 10**9) -> Any:
    """A field with a whole number from ``least`` to ``most``, or None if that is its default."""
    return field(default=default, metadata={"least": least, "most": most})


_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {
    "": 1, "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_ISO_DURATION = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?(?<!T)\Z"
)
_NUMBER_UNIT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*\Z")
DURATION_MAX_S = 100 * 366 * 86400
DURATION_TEXT_MAX = 100  # characters: also header fields of messages are parsed, which may be long


class Rate(NamedTuple):
    """``events`` per ``per_s`` seconds."""

    events: int
    per_s: float


ByteRate = NewType("ByteRate", Rate)  # bytes per time
Threshold = NewType("Threshold", Rate)  # matches in a time
MessagesWithin = NewType("MessagesWithin", Rate)


class Keep(NamedTuple):
    """The amount that is kept: what is younger than ``age_s``, and at most ``size_bytes``; None: no limit."""

    age_s: float | None = None
    size_bytes: int | None = None


def duration(value: object) -> Seconds:
    """Parse ``5m``, ``1.5h``, ``250ms``, several parts (``1h30m``), or an ISO 8601 duration of weeks to
    seconds (``PT15M``, ``P1DT2H``). Raises ValueError.
    """
    allowed = "a duration such as 30s, 5m, 2h, 4d or PT15M"
    if not isinstance(value, str) or len(value) > DURATION_TEXT_MAX:
        raise ValueError(allowed)
    iso = _ISO_DURATION.match(value)
    if iso is not None and any(iso.groups()):
        return _bounded(
            sum(float(n or 0) * _SECONDS[u] for n, u in zip(iso.groups(), "wdhms", strict=True))
        )
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", value)
    if not parts or "".join(n + u for n, u in parts) != re.sub(r"\s+", "", value):
        raise ValueError(allowed)
    return _bounded(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def moment(value: object) -> datetime:
    """Parse ``2026-11-20``, ``2026-11-20T08:30`` (UTC without an offset, ``Z`` or ``+01:00``), or how long ago: ``2d``, to a time in UTC.

    Raises ValueError.
    """
    allowed = "a time such as 2026-11-20, 2026-11-20T08:30Z, or 2d for two days ago"
    if not isinstance(value, str):
        raise ValueError(allowed)
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        try:
            ago_s = duration(value)
            return datetime.fromtimestamp(clock.now_ms() / 1000 - ago_s, UTC)
        except (ValueError, OverflowError):
            raise ValueError(allowed) from None
    try:
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except OverflowError:  # of the first or the last year
        raise ValueError(allowed) from None


def positive_duration(value: object) -> Seconds:
    """As ``duration``, without ``0s``. Raises ValueError."""
    found = duration(value)
    if found <= 0:
        raise ValueError("a duration of more than 0s")
    return found


def _bounded(seconds: float) -> Seconds:
    if seconds > DURATION_MAX_S:
        raise ValueError("a duration of less than 100 years")
    return Seconds(seconds)


def size(value: object) -> Size:
    """Parse ``64MiB``, ``10GB`` or a plain number of bytes. Raises ValueError."""
    allowed = "a size such as 64KiB, 50MiB or 1GB"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(allowed)
    match = _NUMBER_UNIT.match(str(value))
    if match is None or match[2] not in _BYTES:
        raise ValueError(allowed)
    return Size(int(float(match[1]) * _BYTES[match[2]]))


def rate(value: object) -> Rate:
    """Parse ``100/s``, ``6000/m``, ``5/10s``: a whole number per duration. Raises ValueError."""
    allowed = "a rate such as 100/s, 6000/m or 20000/h, of at least 1"
    match = (
        re.match(r"\s*(\d{1,15})\s*/\s*(\d{0,15}\s*(?:ms|[smhdw]))\s*\Z", value)
        if isinstance(value, str)
        else None
    )
    if match is None or int(match[1]) == 0:
        raise ValueError(allowed)
    per = match[2].strip()
    per_s = duration(per if per[0].isdigit() else f"1{per}")
    if not per_s:
        raise ValueError(allowed)
    return Rate(int(match[1]), per_s)


def threshold(value: object) -> Threshold:
    """Parse ``5/10m``: a number of matches in a time. Raises ValueError."""
    try:
        return Threshold(rate(value))
    except ValueError as exc:
        raise ValueError("a number of matches in a time such as 5/10m, of at least 2") from exc


def day(value: object) -> date:
    """Parse ``2026-11-01``. Raises ValueError."""
    try:
        if type(value) is date:
            return value
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError("a day such as 2026-11-01")


def byte_rate(value: object) -> ByteRate:
    """Parse ``1GiB/d``: a size per duration. Raises ValueError."""
    amount, slash, per = value.partition("/") if isinstance(value, str) else ("", "", "")
    try:
        events = size(amount.strip())
        per_s = rate(f"1/{per}").per_s
    except ValueError:
        events = Size(0)
    if not slash or not events:
        raise ValueError("a size for a time, such as 500MiB/h or 10GB/d, of at least 1 byte")
    return ByteRate(Rate(events, per_s))


def messages_within(value: object) -> MessagesWithin:
    """Parse ``200 messages within 1m``. Raises ValueError."""
    number, _, period = value.partition(" messages within ") if isinstance(value, str) else ("", "", "")
    try:
        return MessagesWithin(rate(f"{number}/{period}"))
    except ValueError:
        raise ValueError("a number of messages in a time, such as 200 messages within 1m") from None


def keep(value: object) -> Keep:
    """Parse ``90d``, ``50GiB`` or both, ``90d | 50GiB``. Raises ValueError."""
    allowed = "a duration, a size, or both, such as 90d | 50GiB"
    age_s = size_bytes = None
    for part in value.split("|") if isinstance(value, str) else [""]:
        try:
            if age_s is None:
                age_s = duration(part.strip())
                continue
        except ValueError:
            pass
        if size_bytes is not None or part.strip().isdigit():
            raise ValueError(allowed)
        try:
            size_bytes = size(part)
        except ValueError as exc:
            raise ValueError(allowed) from exc
    return Keep(age_s, size_bytes)


def process_count(value: object) -> ProcessCount:
    """Parse ``0`` to ``64`` or ``auto``, which is AUTO. Raises ValueError."""
    if value == "auto":
        return AUTO
    if type(value) is not int or not 0 <= value <= PROCESSES_MAX:
        raise ValueError(f"a number from 0 to {PROCESSES_MAX}, or auto")
    return ProcessCount(value)


def exit_code(value: object) -> ExitCode:
    """Parse ``1`` to ``255``. Raises ValueError."""
    if type(value) is not int or not 1 <= value <= 255:
        raise ValueError("an exit code from 1 to 255")
    return ExitCode(value)


def word(value: object) -> Word:
    """Text, or a number as text. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("a word or a list of words")
    return Word(str(value))


def percent(value: object) -> Percent:
    """Parse ``10%``, or ``10`` with the same meaning. Raises ValueError."""
    match = re.match(r"\s*(\d{1,9})\s*%?\s*\Z", value) if isinstance(value, str) else None
    if match is not None:
        return Percent(int(match[1]))
    if type(value) is not int:
        raise ValueError("a whole number of per cent such as 10%")
    return Percent(value)


# ---- Scalars of YAML as values: units, addresses, texts, numbers, dates, paths and networks.
#
# A tag of a file is never executed. What cannot be read raises ValueError, whose text says what was found and what is expected.


def _network(value: object) -> IPv4Network | IPv6Network:
    try:
        return ip_network(str(value), strict=False)
    except ValueError as exc:
        raise ValueError("a network such as 10.0.0.0/8 or ::1/128") from exc


_PARSERS: dict[Any, Any] = {
    Seconds: duration,
    Size: size,
    Rate: rate,
    ByteRate: byte_rate,
    HostPort: host_port,
    NameServer: lambda value: host_port(value, 53),
    ProcessCount: process_count,
    Percent: percent,
    ExitCode: exit_code,
    Keep: keep,
    MessagesWithin: messages_within,
    Smarthost: smarthost,
    AdminAddress: admin_address,
    Word: word,
    Threshold: threshold,
    date: day,
    Address: address,
    IPv4Network: _network,
}

_OF_YAML_1_1 = re.compile(r"[-+]?(?:0[0-9_]+\Z|[0-9_]+:)")  # octal, and to the base 60
_STR = "tag:yaml.org,2002:str"


def read_scalar(node: yaml.Node, kind: Any) -> Any:
    """The value of ``node`` as a ``kind``. Raises ValueError."""
    refused = ValueError(f"found {shown(node)}, expected {_expected(kind)}")
    if not isinstance(node, yaml.ScalarNode):
        raise refused
    try:
        value = node.value if kind in (date, IPv4Network) else _plain(node)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as exc:  # PyYAML's, for odd tags
        raise ValueError(f"found {shown(node)} with tag {node.tag}, expected {_expected(kind)}") from exc
    if type(value) in (int, float) and _OF_YAML_1_1.match(node.value):
        raise ValueError(
            f"found {shown(node)}, which YAML reads as {value}: write the number without leading 0 or ':'"
        )
    if kind in _PARSERS:
        try:
            return _PARSERS[kind](value)
        except ValueError as exc:
            raise ValueError(f"found {shown(node)}, expected {exc}") from exc
    if kind is str and value is False and node.value.lower() == "off":
        return "off"  # a boolean in YAML 1.1, a word in `tls: off`
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if type(value) is not kind:
        raise refused
    return value


def shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"'{node.value}'" if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _plain(node: yaml.ScalarNode) -> Any:
    """The scalar as YAML resolves it: text, number, boolean or None."""
    if node.tag == _STR:
        return node.value
    return yaml.SafeLoader("").construct_object(node)


def _expected(kind: Any) -> str:
    names = {
        str: "text", int: "a whole number", bool: "true or false", Path: "a path",
        IPv4Network: "a network such as 10.0.0.0/8 or ::1/128",
    }  # fmt: skip
    return names.get(kind, getattr(kind, "__name__", str(kind)))
