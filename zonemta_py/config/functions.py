"""Functions of the operator's, named in the configuration as ``package.module.function``."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.config.units import Seconds
from zonemta_py.core.errors import ConfigError


def with_functions(
    config: Config,
    *,
    backoff: Callable[..., Any] | Sequence[float] | None,
    bounce: Callable[..., Any] | None,
    policies: Sequence[Callable[..., Any]],
) -> Config:
    """``config`` with functions of a program where it would name them. Raises ConfigError.

    Functions take the places of names: only other processes, which read the text, need those.
    """
    if callable(policies):
        raise ConfigError("policies is a list of functions")
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
        function: Any = backoff
        if callable(backoff):
            own["retry"] = replace(zone.retry, policy="backoff", function=function)
        elif backoff is not None:
            delays = tuple(Seconds(delay_s) for delay_s in backoff)
            own["retry"] = replace(zone.retry, policy="ladder", delays=delays)
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
    if not module:
        raise ConfigError(f"found '{name}', expected package.module.function")
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as exc:
        where = "" if exc.name == module.partition(".")[0] else f" (imported by {module})"
        raise ConfigError(
            f"no function '{name}': {exc}{where}; modules are looked for where Python looks: PYTHONPATH"
        ) from exc
    except AttributeError as exc:
        raise ConfigError(f"no function '{name}': {exc}") from exc
    except Exception as exc:  # whatever a module of the operator's does when it is loaded
        raise ConfigError(f"'{name}' cannot be loaded: {exc!r}") from exc
    if not callable(found):
        raise ConfigError(f"'{name}' is not a function")
    named: Callable[..., Any] = found
    return named


def plain_function(name: "str | Callable[..., Any]") -> Callable[..., Any]:
    """As ``named_function``, for one that is called on the loop: no class, no coroutine function."""
    function = named_function(name)
    if inspect.isclass(function):
        raise ConfigError(f"'{name}' is a class: name an instance of it, or a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"'{name}' is a coroutine function: a plain one is needed here")
    return function
