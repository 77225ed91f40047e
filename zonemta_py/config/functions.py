"""Functions of the operator's, named in the configuration as ``package.module.function``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.errors import ConfigError


def with_functions(
    config: Config,
    *,
    backoff: Callable[..., Any] | None,
    bounce: Callable[..., Any] | None,
    policies: Sequence[Callable[..., Any]],
) -> Config:
    """``config`` with functions of a program where it would name them. Raises ConfigError.

    Functions take the places of names: only other processes, which read the text, need those.
    """
    if policies:
        if config.processes.receivers:
            raise ConfigError("policies that are functions of this program need processes.receivers: 0")
        named: Any = (*config.policies, *policies)
        config = replace(config, policies=named)
    if backoff is None and bounce is None:
        return config
    zones = {}
    for name, zone in config.zones.items():
        own: Any = {}
        if backoff is not None:
            function: Any = backoff
            own["retry"] = replace(zone.retry, policy="backoff", function=function)
        if bounce is not None:
            function = bounce
            own["bounce"] = replace(zone.bounce, function=function)
        zones[name] = replace(zone, **own)
    return replace(config, zones=zones)


def named_function(name: "str | Callable[..., Any]") -> Callable[..., Any]:
    """The function that ``name`` names, or is. Raises ConfigError when there is none."""
    if callable(name):
        return name
    module, _, function = name.rpartition(".")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"no function '{name}': {exc}") from exc
    if not callable(found):
        raise ConfigError(f"'{name}' is not a function")
    named: Callable[..., Any] = found
    return named
