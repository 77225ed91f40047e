"""The small languages of configuration values: durations, sizes, rates, host:port.

Each parser takes what YAML gave (text or a number) and returns a value or raises ValueError whose
text says what is allowed.
"""

import re
from typing import NamedTuple, NewType

Seconds = NewType("Seconds", float)
Size = NewType("Size", int)
ProcessCount = NewType("ProcessCount", int)

AUTO = ProcessCount(-1)  # as many as the processor's cores suggest
PROCESSES_MAX = 64

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


class Rate(NamedTuple):
    """``events`` per ``per_s`` seconds."""

    events: int
    per_s: float


class HostPort(NamedTuple):
    """An address to listen on or connect to; ``host`` is a name or an IP address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


NameServer = NewType("NameServer", HostPort)  # a HostPort whose port is 53 unless said


def duration(value: object) -> Seconds:
    """``5m``, ``1.5h``, ``250ms``; several parts may follow one another: ``1h30m``.

    ISO 8601 durations up to days are taken too: ``PT15M``, ``P1DT2H``.
    """
    allowed = "a duration such as 30s, 5m, 2h, 4d or PT15M"
    if not isinstance(value, str):
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


def _bounded(seconds: float) -> Seconds:
    if seconds > DURATION_MAX_S:
        raise ValueError("a duration of less than a hundred years")
    return Seconds(seconds)


def size(value: object) -> Size:
    """``64MiB``, ``10GB`` or a plain number of bytes."""
    allowed = "a size such as 64KiB, 50MiB or 1GB"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(allowed)
    match = _NUMBER_UNIT.match(str(value))
    if match is None or match[2] not in _BYTES:
        raise ValueError(allowed)
    return Size(int(float(match[1]) * _BYTES[match[2]]))


def rate(value: object) -> Rate:
    """``100/s``, ``6000/m``, ``5/10s``: a whole number per duration."""
    allowed = "a rate such as 100/s, 6000/m or 20000/h"
    match = (
        re.match(r"\s*(\d{1,15})\s*/\s*(\d{0,15}\s*(?:ms|[smhd]))\s*\Z", value)
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


def host_port(value: object, default_port: int | None = None) -> HostPort:
    """``host:port``, ``127.0.0.1:25``, ``[::1]:25``; the port may be absent where a default exists."""
    allowed = "host:port, with brackets around an IPv6 address"
    match = (
        re.match(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:\s]+))(?::(\d{1,5}))?\Z", value)
        if isinstance(value, str)
        else None
    )
    if match is None:
        raise ValueError(allowed)
    port = int(match[3]) if match[3] else default_port
    if port is None or port > 65535:
        raise ValueError(allowed)
    return HostPort(match[1] or match[2], port)


def process_count(value: object) -> ProcessCount:
    """``0`` to ``64``, or ``auto``, which is AUTO."""
    if value == "auto":
        return AUTO
    if type(value) is not int or not 0 <= value <= PROCESSES_MAX:
        raise ValueError(f"a number from 0 to {PROCESSES_MAX}, or auto")
    return ProcessCount(value)
