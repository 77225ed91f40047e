"""Functions of the program that embeds a relay; they take precedence over those that a configuration names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zonemta_py.config.references import plain_function
from zonemta_py.config.schema import Config
from zonemta_py.config.units import Seconds
from zonemta_py.core.errors import ConfigError

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """``backoff``: when to retry, or the delays in seconds. ``bounce``: changes reports.

    ``policies`` change accepted envelopes, after those of the configuration.
    """

    backoff: Function | Sequence[float] | None = None
    bounce: Function | None = None
    policies: Sequence[Function] = ()

    def apply(self, config: Config) -> Config:
        """``config`` with the retry policy that the hooks replace. Raises ConfigError."""
        if callable(self.policies):
            raise ConfigError("policies is a list of functions")
        if self.policies and config.processes.receivers > 0:
            raise ConfigError("policies that are functions of this program need processes.receivers: 0")
        if self.backoff is None:
            return config
        if callable(self.backoff):
            changes: dict[str, Any] = {"policy": "backoff", "function": None}
        else:
            delays = tuple(Seconds(delay_s) for delay_s in self.backoff)
            changes = {"policy": "ladder", "delays": delays, "function": None}
        zones = {
            name: replace(zone, retry=replace(zone.retry, **changes))
            for name, zone in config.zones.items()
        }
        return replace(config, zones=zones)

    def backoff_function(self, named: str | None) -> Function | None:
        """The function that decides when to retry; ``named`` is that of a zone. Raises ConfigError."""
        return self.backoff if callable(self.backoff) else _load(named)

    def bounce_function(self, named: str | None) -> Function | None:
        """The function that changes reports; ``named`` is that of a zone. Raises ConfigError."""
        return self.bounce or _load(named)

    def envelope_policies(self, config: Config) -> list[Function]:
        """All policies, in the order of their calls. Raises ConfigError."""
        return [*map(plain_function, config.policies), *self.policies]


NO_HOOKS = Hooks()


def _load(name: str | None) -> Function | None:
    return plain_function(name) if name is not None else None
