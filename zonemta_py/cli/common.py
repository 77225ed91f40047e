"""What the commands share: how they fail, how they read a configuration, how they print rows."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from zonemta_py.config.load import load_config
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import ConfigError, LocalError, QueueLocked

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOCKED = 111  # qmail's exit code for "already running"

P = ParamSpec("P")
R = TypeVar("R")

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    envvar="ZONEMTA_CONFIG",
    show_envvar=True,
    help="The configuration file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines for programs.")


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """Say what is wrong on stderr, and end."""
    click.secho("error: ", fg="red", err=True, nl=False)
    click.echo(text, err=True)
    sys.exit(code)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn our errors into one line and an exit code; anything else is a defect and shows itself."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigError as exc:
            fail(str(exc), EXIT_USAGE)
        except QueueLocked as exc:
            fail(str(exc), EXIT_LOCKED)
        except LocalError as exc:
            fail(str(exc))
        except BrokenPipeError:
            sys.exit(EXIT_FAILED)
        except OSError as exc:
            if exc.filename is None:
                raise
            fail(f"{exc.filename}: {exc.strerror}", EXIT_USAGE)

    return wrapper


def read_config(path: Path) -> Config:
    """The configuration in ``path``. Raises ConfigError."""
    return load_config(path)


def print_json(row: Any) -> None:
    """One JSON document on a line of stdout."""
    click.echo(to_json(row).decode())
