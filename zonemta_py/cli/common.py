"""Exit codes, error reports, output and the options that most commands have."""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from zonemta_py.config.load import load_config
from zonemta_py.config.providers import DEFAULT, SMARTHOST, load_providers
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import ConfigError, LocalError, QueueCorrupt, QueueLocked, UnknownName
from zonemta_py.core.text import ago, escaped, escaped_json, time_left
from zonemta_py.egress.sources import BY_SYSTEM, names_in_pools

if TYPE_CHECKING:
    from rich.table import Column, Table


class ConfiguredName(StringParamType):
    """A name of ``--config``, or another one: the command, or the relay, says what is wrong with it."""

    def __init__(self, name: str, known: Callable[[Config], Iterable[str]]) -> None:
        self.name = name
        self._known = known

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names of the configuration that the command line names so far; none if it is not usable."""
        path: Any = ctx.params.get("config_path")
        try:
            known = self._known(load_config(path)) if path else ()
        except ConfigError:
            return []
        return [CompletionItem(each) for each in sorted(known) if each.startswith(incomplete)]


def _providers(config: Config) -> set[str]:
    table = load_providers(config.providers.file, shipped=config.providers.shipped)
    return {SMARTHOST, *table.providers} - {DEFAULT}


def _addresses(config: Config) -> set[str]:
    return {BY_SYSTEM}.union(*names_in_pools(config.pools).values())


ZONE = ConfiguredName("NAME", lambda config: config.zones)
PROVIDER = ConfiguredName("NAME", _providers)
POOL = ConfiguredName("NAME", lambda config: config.pools)
ADDRESS = ConfiguredName("IP", _addresses)
TENANT = ConfiguredName("NAME", lambda config: config.tenants)


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
    """A number with its noun: ``1 recipient``, ``1,200 recipients``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(row: Any) -> None:
    """Print ``row`` as one line of JSON, which may be read on a terminal."""
    click.echo(escaped_json(to_json(row).decode()))


def print_table(table: "Table", width: int = PIPE_WIDTH) -> None:
    """Print ``table``, with no control characters of strangers, as wide as the terminal, or ``width`` columns when stdout is not one.

    What does not fit has fewer columns, or a block for each row; see ``fitted``.
    """
    from rich.console import Console  # a tenth of the start of a command that prints no table

    for column in table.columns:
        column.header = (
            escaped(column.header, LINES) if isinstance(column.header, str) else column.header
        )
        column._cells = [
            escaped(cell, LINES) if isinstance(cell, str) else cell for cell in column._cells
        ]
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else width)
    console.print(fitted(table, console.width))


NAME_WIDTH = 12  # columns that a text keeps when it is folded


def fitted(table: "Table", width: int) -> "Table | str":
    """``table`` so that it can be read in ``width`` columns of a terminal.

    Text is folded and the words of a heading stand below each other; numbers are whole. When that is not enough, columns with
    nothing but zeros are left out; when it is not enough either, each row is a block with a line for each value.
    """
    columns = table.columns
    whole = [max(len(str(each.header)), _width_of_cells(each)) for each in columns]
    if sum(whole) + 2 * (len(whole) - 1) <= width:
        return table
    if _least_width(columns) > width:
        columns = [each for each in columns if any(str(cell) not in ("", "0") for cell in each._cells)]
        if _least_width(columns) > width:
            blocks = _blocks(columns, width)
            return f"{table.title}\n\n{blocks}" if table.title else blocks
    table.columns, table.padding = columns, (0, 1, 0, 0)
    for column in columns:
        column.overflow = "fold"
        if column.justify == "right":
            column.no_wrap, column.header = True, "\n".join(str(column.header).split())
    return table


def _width_of_cells(column: "Column") -> int:
    return max((cell_len(str(cell)) for cell in column._cells), default=0)


def _least_width(columns: "Sequence[Column]") -> int:
    """The columns of a terminal that a table needs: each word of a heading, each number, and NAME_WIDTH of a text."""
    widths = []
    for column in columns:
        word = max((len(word) for word in str(column.header).split()), default=0)
        cells = _width_of_cells(column)
        widths.append(max(word, cells if column.justify == "right" else min(cells, NAME_WIDTH)))
    return sum(widths) + len(widths) - 1


def _blocks(columns: "Sequence[Column]", width: int) -> str:
    """A block for each row: a line for each value, continued below it, so that no value looks like another line."""
    titles = [str(column.header) for column in columns]
    most = max(map(len, titles), default=0)
    fill = TextWrapper(max(width, most + NAME_WIDTH), subsequent_indent=" " * (most + 2)).fill
    blocks = []
    for cells in zip(*(column._cells for column in columns), strict=True):
        shown = [
            (title, cell)
            for title, cell in zip(titles, cells, strict=True)
            if str(cell) not in ("", "0")
        ]
        blocks.append("\n".join(fill(f"{title:<{most}}  {cell}") for title, cell in shown))
    return "\n\n".join(blocks)


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar by a number of items. ``total`` None: the number is not known."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total, rate="")

        def advance(count: int) -> None:
            speed = progress.tasks[0].speed
            progress.update(task, advance=count, rate=f"{speed:,.0f}/s" if speed else "")

        yield advance


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Show ``title`` with a spinner until the end of the block."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(title):
        yield


@contextmanager
def step_shower() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the name of the step that begins, with a spinner."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status("") as status:
        yield status.update


def reason_text(why: dict[str, Any]) -> str:
    """``name, for …, next in …: reason [key]``, without what is unknown, or less than a second: limits such as a rate come and go."""
    text: str = why["name"].replace("_", " ")
    if why["since_ms"] and (since := ago(why["since_ms"])) != "0s":
        text += f", for {since}"
    left = time_left(why["until_ms"])
    if left:
        text += ", next now" if left in ("0s", "now") else f", next in {left}"
    text += f": {why['reason']}"
    return f"{text} [{why['key']}]" if why["key"] else text


def shaped_text(row: dict[str, Any]) -> str:
    """``google from 192.0.2.1: pace: full -> 5 sessions, 300/m (cause)``, of an event ``shaped``; ``any`` for an empty name."""
    where = f"{row['provider'] or 'any'} from {row['address'] or 'any'}"
    return f"{where}: {row['what']}: {clock.with_times(row['from'])} -> {clock.with_times(row['to'])} ({row['cause']})"


Section = Mapping[
    str, tuple[str, str]
]  # by name the ``module:attribute`` of a command, and a line about it


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used; ``sections`` of its help by title."""

    def __init__(self, *args: Any, sections: Mapping[str, Section], **options: Any) -> None:
        super().__init__(*args, **options)
        self.sections = sections
        self._places = {name: place for each in sections.values() for name, (place, _) in each.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now; None for an unknown name."""
        place = self._places.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command, below the title of its section; the commands are not imported for it."""
        width = max(map(len, self._places))
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in section.items()])
