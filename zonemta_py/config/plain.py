"""A configuration as plain values, in the words of the file: ``5m``, ``64KiB``, ``100/s``. Pure."""

import typing
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from zonemta_py.config.values import AUTO, ByteRate, Keep, Percent, ProcessCount, Rate, Seconds, Size
from zonemta_py.core.text import arguments_without_secrets, without_secrets

_UNITS_S = (("w", 604800.0), ("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001))
_UNITS_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def plain_values(value: Any, kind: Any = None) -> Any:
    """``value``, of the type ``kind``, as mappings, lists, texts and numbers. Secrets in URLs and commands are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        shown = (each for each in fields(value) if not each.metadata.get("hidden"))
        return {
            each.name.rstrip("_"): plain_values(
                _public(each, getattr(value, each.name)), hints[each.name]
            )
            for each in shown
        }
    if isinstance(value, Mapping):
        return {name: plain_values(item) for name, item in value.items()}
    if isinstance(value, Keep):
        parts = (value.age_s, Seconds), (value.size_bytes, Size)
        return " | ".join(_with_unit(part, unit) for part, unit in parts if part is not None)
    if type(value) is tuple:
        item = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None
        return [plain_values(each, item) for each in value]
    if value is None or isinstance(value, bool):
        return value
    kinds = [each for each in typing.get_args(kind) if each is not type(None)]
    return _scalar(value, kinds[0] if kinds else kind)


def _public(field: Field[Any], value: Any) -> Any:
    return arguments_without_secrets(value) if field.metadata.get("arguments") else value


def rate_text(rate: Rate) -> str:
    """A rate as a configuration has it: ``100/s``, ``5/10s``."""
    per: str = _scalar(rate.per_s, Seconds)
    return f"{rate.events}/{per[1:] if per[0] == '1' and per[1:].isalpha() else per}"


def _scalar(value: Any, kind: Any) -> Any:
    if kind is ByteRate:
        return f"{_with_unit(value.events, Size)}/{_scalar(value.per_s, Seconds)}"
    if isinstance(value, Rate):
        return rate_text(value)
    if kind is Seconds:
        return _counted(value, _UNITS_S) or f"{value:.9f}".rstrip("0").rstrip(".") + "s"
    if kind is Size:
        return _counted(value, _UNITS_BYTES) or value
    if kind is Percent:
        return f"{value}%"
    if kind is ProcessCount and value == AUTO:
        return "auto"
    if isinstance(value, (int, float)):
        return value
    text = str(value)
    return without_secrets(text)


def _with_unit(value: float, kind: Any) -> str:
    text = _scalar(value, kind)
    return text if isinstance(text, str) else f"{text}B"


def _counted(value: float, units: tuple[tuple[str, float], ...]) -> str:
    """``value`` in the largest unit of which it is a whole number; empty without one."""
    for unit, size in units:
        count = value / size
        if count >= 1 and abs(count - round(count)) < 1e-6:
            return f"{round(count)}{unit}"
    return ""
