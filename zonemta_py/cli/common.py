"""Exit codes, error reports, output and the options that most commands have."""

import errno
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click

from zonemta_py.cli.names import ZONE
from zonemta_py.config.load import load_config
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import ConfigError, LocalError, QueueCorrupt, QueueLocked, UnknownName
from zonemta_py.core.text import escaped, escaped_json

if TYPE_CHECKING:
    from rich.table import Table

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_LOCKED = 111  # qmail's exit code for "already running"
LINES = "\n\t"  # not printable, and printed
PIPE_WIDTH = 10_000  # columns of a table that is not printed on a terminal: a row is a line
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_PATH = (errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)

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
zone_option = click.option("--zone", type=ZONE, help="Only this zone.")
domain_option = click.option("--domain", help="Only this recipient domain.")


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """Print ``text`` on stderr and exit with ``code``."""
    click.secho("error: ", fg="red", err=True, nl=False)
    click.echo(escaped(text, LINES), err=True)
    sys.exit(code)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Print an expected error in one line and exit with its code; any other exception is a defect and is raised."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (ConfigError, UnknownName) as exc:
            fail(str(exc), EXIT_USAGE)
        except QueueLocked as exc:
            fail(str(exc), EXIT_LOCKED)
        except QueueCorrupt as exc:
            fail(f"{exc}; the queue is damaged: stop the relay and run `zonemta queue repair`")
        except LocalError as exc:
            fail(str(exc))
        except BrokenPipeError:
            sys.exit(EXIT_FAILED)
        except OSError as exc:
            if exc.filename is None and exc.errno in _FULL:  # also of standard output
                _discard_output()
                fail(f"a write failed: {exc.strerror}")
            if exc.filename is None:
                raise
            code = EXIT_USAGE if exc.errno in _WRONG_PATH else EXIT_FAILED
            fail(f"{exc.filename}: {exc.strerror}", code)

    return wrapper


def _discard_output() -> None:
    """Discard what cannot be written to standard output: it would fail again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_config(path: Path) -> Config:
    """The configuration in ``path``. Raises ConfigError."""
    return load_config(path)


def read_message(path: Path) -> bytes:
    """The bytes of a file. Raises OSError; LocalError for one that opens and cannot be read, as some of /proc."""
    try:
        return path.read_bytes()
    except OSError as exc:
        if exc.filename is not None:
            raise
        raise LocalError(f"{path}: {exc.strerror}") from exc


def echo(text: str, color: str | None = None, *, bold: bool = False) -> None:
    """Print ``text``, which may be from strangers: control characters would command the terminal."""
    click.secho(escaped(text, LINES), fg=color, bold=bold or None)


def counted(number: int, noun: str) -> str:
    """``1 recipient``, ``1,200 recipients``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(row: Any) -> None:
    """Print ``row`` as one line of JSON, which may be read on a terminal."""
    click.echo(escaped_json(to_json(row).decode()))


def print_table(table: "Table", width: int = PIPE_WIDTH) -> None:
    """Print ``table``, with no control characters of strangers, as wide as the terminal, or ``width`` columns when stdout is not one."""
    from rich.console import Console  # a tenth of the start of a command that prints no table

    for column in table.columns:
        column.header = (
            escaped(column.header, LINES) if isinstance(column.header, str) else column.header
        )
        column._cells = [
            escaped(cell, LINES) if isinstance(cell, str) else cell for cell in column._cells
        ]
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else width).print(table)
