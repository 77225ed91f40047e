"""Names in a configuration that refer to Python functions and to secrets in files, and the functions of an embedding program.

Functions of the embedding program (``Hooks``) take precedence over those that a configuration names.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from zonemta_py.config.schema import Config
from zonemta_py.config.values import Seconds
from zonemta_py.core.errors import ConfigError

# ---- Names in a configuration: Python functions (``package.module.function``) and secrets in files.


def read_token(path: Path | None) -> str:
    """The first line of the file ``path``; an empty text for None. Raises ConfigError."""
    if path is None:
        return ""
    try:
        token = path.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if not token:
        raise ConfigError(f"{path}: the first line is empty")
    return token


def named_function(name: "str | Callable[..., Any]") -> Callable[..., Any]:
    """The function with the dotted name ``name``, or ``name`` if it is a function. Raises ConfigError."""
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
            f"no function '{name}': {exc}{where}; Python searches its module path (PYTHONPATH)"
        ) from exc
    except AttributeError as exc:
        raise ConfigError(f"no function '{name}': {exc}") from exc
    except Exception as exc:  # the module of the user may raise anything while it is loaded
        raise ConfigError(f"'{name}' cannot be loaded: {exc!r}") from exc
    if not callable(found):
        raise ConfigError(f"'{name}' is not a function")
    named: Callable[..., Any] = found
    return named


def plain_function(name: "str | Callable[..., Any]") -> Callable[..., Any]:
    """As ``named_function``, for a function that the event loop calls: classes and coroutine functions are refused."""
    function = named_function(name)
    if inspect.isclass(function):
        raise ConfigError(f"'{name}' is a class: name an instance of it, or a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"'{name}' is a coroutine function: a plain function is needed here")
    return function


# ---- Functions of the embedding program.

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
