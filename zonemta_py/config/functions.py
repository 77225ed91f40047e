"""Functions of the operator's, named in the configuration as ``package.module.function``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
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
