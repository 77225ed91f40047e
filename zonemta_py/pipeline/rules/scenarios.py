"""Scenarios of a simulation: one configuration, and every combination of values for some of its keys. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from zonemta_py.config.load import parse_config, with_key
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import ConfigError
from zonemta_py.delivery.egress import read_egress
from zonemta_py.pipeline.rules.simulated_egress import SendingSettings

SCENARIOS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ConfigScenario:
    """``settings``: the changed keys and their values as text; ``config``: the configuration with them.

    ``sending``: what it and its files say of providers, shaping and warm-up.
    """

    number: int
    settings: tuple[tuple[str, str], ...]
    config: Config
    sending: SendingSettings


def scenarios(text: str, path: Path, changes: Sequence[str]) -> list[ConfigScenario]:
    """Every combination of ``changes``, each like ``zones.default.connections=10,20``.

    A value in brackets is one value. Raises ConfigError, also for a combination that is not valid.
    """
    choices = [_values(change) for change in changes]
    names = [name for name, _ in choices]
    combinations = list(product(*(values for _, values in choices)))
    if len(combinations) > SCENARIOS_MAX:
        raise ConfigError(f"too many combinations ({len(combinations)}); the limit is {SCENARIOS_MAX}")
    return [
        _scenario(text, path, number, tuple(zip(names, chosen, strict=True)))
        for number, chosen in enumerate(combinations)
    ]


def _values(change: str) -> tuple[str, list[str]]:
    name, separator, text = change.partition("=")
    if not separator or not name or not text:
        raise ConfigError(f"--set '{change}': expected KEY=VALUE or KEY=VALUE,VALUE,…")
    one = text.startswith(("[", "{"))
    values = [text] if one else [each.strip() for each in text.split(",")]
    if "" in values:
        raise ConfigError(f"--set '{change}': found an empty value, expected KEY=VALUE,VALUE,…")
    return name, values


def _scenario(
    text: str, path: Path, number: int, settings: tuple[tuple[str, str], ...]
) -> ConfigScenario:
    for name, value in settings:
        text = with_key(text, path, name, value)
    try:
        config = parse_config(text, path)
        sending = _sending(config)
    except ConfigError as exc:
        chosen = " ".join(f"{name}={value}" for name, value in settings)
        raise ConfigError(f"with {chosen}: {exc}" if chosen else str(exc)) from exc
    return ConfigScenario(number, settings, config, sending)


def _sending(config: Config) -> SendingSettings:
    files = read_egress(config)
    return SendingSettings(
        files.table.providers,
        files.rules.rules,
        files.schedules,
        config.shaping.controller,
        config.pools,
    )
