"""Functions of the operator's, named in the configuration as ``package.module.function``."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from zonemta_py.errors import ConfigError


def named_function(name: str) -> Callable[..., Any]:
    """The function that ``name`` names. Raises ConfigError when there is none."""
    module, _, function = name.rpartition(".")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigError(f"no function '{name}': {exc}") from exc
    if not callable(found):
        raise ConfigError(f"'{name}' is not a function")
    named: Callable[..., Any] = found
    return named
