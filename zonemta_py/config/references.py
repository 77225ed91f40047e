"""What a configuration refers to by name: Python functions (``package.module.function``) and secrets in files."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from zonemta_py.core.errors import ConfigError


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
    """See ``named_function``; classes and coroutine functions are refused: the event loop calls the function."""
    function = named_function(name)
    if inspect.isclass(function):
        raise ConfigError(f"'{name}' is a class: name an instance of it, or a function")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"'{name}' is a coroutine function: a plain function is needed here")
    return function
