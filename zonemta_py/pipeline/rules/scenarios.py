"""Configurations to be tried: one file, and values that some of its keys take in turn. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from zonemta_py.config.load import parse_config, plain
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import ConfigError

SCENARIOS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Scenario:
    """``settings``: the keys that differ, as they were written; ``config`` with them."""

    number: int
    settings: tuple[tuple[str, str], ...]
    config: Config


def scenarios(text: str, path: Path, changes: Sequence[str]) -> list[Scenario]:
    """Every combination of ``changes``, which are ``zones.default.connections=10,20``.

    A value in brackets is one value. Raises ConfigError, also for a combination that the relay refuses.
    """
    values = [_values(change) for change in changes]
    names = [name for name, _ in values]
    combinations = list(product(*(found for _, found in values)))
    if len(combinations) > SCENARIOS_MAX:
        raise ConfigError(f"{len(combinations)} combinations: at most {SCENARIOS_MAX} at once")
    return [
        _scenario(text, path, number, tuple(zip(names, chosen, strict=True)))
        for number, chosen in enumerate(combinations)
    ]


def _values(change: str) -> tuple[str, list[str]]:
    name, separator, text = change.partition("=")
    if not separator or not name or not text:
        raise ConfigError(f"--set '{change}': expected KEY=VALUE or KEY=VALUE,VALUE,…")
    one = text.startswith(("[", "{"))
    return name, [text] if one else [each.strip() for each in text.split(",")]


def _scenario(text: str, path: Path, number: int, settings: tuple[tuple[str, str], ...]) -> Scenario:
    tree: Any = plain(text, str(path)) or {}
    for name, value in settings:
        *places, key = name.split(".")
        here = tree
        for place in places:
            here = here.setdefault(place, {}) if isinstance(here, dict) else None
            if here is None:
                break
        if not isinstance(here, dict):
            raise ConfigError(f"--set {name}={value}: there is no such key in {path}")
        here[key] = plain(value, f"--set {name}")
    try:
        config = parse_config(to_json(tree).decode(), path)  # JSON is YAML
    except ConfigError as exc:
        chosen = " ".join(f"{name}={value}" for name, value in settings)
        raise ConfigError(f"with {chosen}: {exc}" if chosen else str(exc)) from exc
    return Scenario(number, settings, config)
