"""Options, Spark session and event log of the commands of ``zonemta pipeline``.

States of ``SparkOptions``: options ─ ``job`` ─▶ session, or one that starts when it is needed ─▶ the event log is verified and open (``log``)
─▶ the session is stopped. ``damage`` is there until the command ends.

Invariants:

- pyspark is imported only when a command runs; without it the command ends with MISSING_SPARK.
- The session is stopped however the job ends. Errors of Spark become LocalError (``spark_errors``).
- A command that has read a damaged event log warns of each damage, and ends with EXIT_DAMAGED.
- The output of a job is never below its event log: the next job would read it as events.
- Over Spark Connect paths of parameters (PATHS) are absolute: a relative one would be one of the server.

Callers: the commands in ``cli/pipeline``, with ``@spark_options``.

Example::

    @click.command()
    @spark_options
    def count(spark: SparkOptions) -> None:
        with spark.job("var/events") as (session, progress):
            progress("counting")
            click.echo(spark.log.records)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zonemta_py.cli.common import fail, step_shower
from zonemta_py.cli.options import EXISTING_FILE
from zonemta_py.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from zonemta_py.pipeline.events.log import EventLog
    from zonemta_py.pipeline.spark.output import Damage
    from zonemta_py.pipeline.spark.tables import Progress


R = TypeVar("R")

# Parameters that Spark reads from or writes to; those of type Path are files of this process.
PATHS = (
    "source", "suppress", "engagement", "events", "plan", "plan_path", "plans", "output", "reports", "mail",
)  # fmt: skip
SHORT_BYTES = (
    64 << 20
)  # of a list and its suppression lists: more is worth the optimisation of Java's code
EXIT_DAMAGED = 3  # done, with what can be read of a damaged event log
MISSING_SPARK = "the pipeline needs Spark: pip install '.[pipeline]' in a checkout of zonemta_py, and Java 17 or newer"

rows_option = click.option(
    "--output",
    metavar="DIRECTORY|table:NAME",
    help="Also write the rows into this directory, as Parquet, or to a table of a catalog of the session, such as table:lake.mail.hours.",
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the output of an earlier run."
)
relay_config_option = click.option(
    "-c", "--config", "config_path", type=EXISTING_FILE, help="The configuration of the relay."
)


def named_values(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """The values of a repeatable option ``NAME=VALUE``. Raises click.BadParameter."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"'{text}' is not NAME=VALUE", context, parameter)
        if name in found:
            raise click.BadParameter(f"'{text}': {name} is given twice", context, parameter)
        found[name] = value
    return found


@dataclass(slots=True)
class SparkOptions:
    """The place and the settings of a job. ``log``: the events that it has read."""

    master: str | None
    heap: str | None
    settings: dict[str, str]
    _log: "EventLog | None" = None

    @property
    def log(self) -> "EventLog":
        """The event log that ``job`` has opened."""
        assert self._log is not None
        return self._log

    @log.setter
    def log(self, log: "EventLog") -> None:
        self._log = log

    @property
    def damage(self) -> "Sequence[Damage]":
        """The damage of the event log that was read."""
        return self._log.damage if self._log else ()

    @contextmanager
    def job(
        self, events: str | None = None, *, light: bool = False, deferred: bool = False
    ) -> "Iterator[tuple[SparkSession, Progress]]":
        """Yields a Spark session and a function that shows the current step; stops the session at the end.

        The event log ``events`` is verified first. ``light``: of ``open_session``. ``deferred``: Spark starts when it is needed.
        Raises LocalError when it does not start.
        """
        from zonemta_py.pipeline.events.log import open_log
        from zonemta_py.pipeline.spark.session import (
            DeferredSession,
            interruptible,
            is_connect,
            open_session,
            same_handler,
            spark_errors,
        )

        is_remote = is_connect(self.master)
        with step_shower() as show, nullcontext() if is_remote else interruptible():
            step = ""

            def progress(text: str) -> None:
                nonlocal step
                step = text
                show(text)

            def opened() -> "SparkSession":
                show("starting Spark")
                with same_handler():
                    session = open_session(self.master, self.heap, light=light, **self.settings)
                if step:
                    show(step)
                return session

            session: Any = DeferredSession(opened) if deferred and not is_remote else opened()
            try:
                if events is not None:
                    progress("verifying the event log")
                    self._log = open_log(session, events)
                with spark_errors("Spark"):  # what a job has not turned into an error of its own
                    yield session, progress
            finally:
                with suppress(OSError):  # Java has ended: what it was about is an error above
                    session.stop()


def _refuse_inside(events: object, output: object) -> None:
    """Raises UsageError for an output below the event log, whose files the next job would read as events."""
    if not (events and output):
        return
    log, other = (
        str(each).removeprefix("file://").removeprefix("file:").rstrip("/") for each in (events, output)
    )
    if "://" not in log + other:
        log, other = (str(Path(each).resolve()) for each in (log, other))
    if f"{other}/".startswith(f"{log}/"):
        raise click.UsageError(f"--output {output} is in the event log {events}: choose another place")


def _with_absolute_paths(master: str | None, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a command's parameters: over Spark Connect a relative path would be one of the server."""
    from zonemta_py.pipeline.spark.session import is_connect

    if not is_connect(master):
        return values
    found = {name: values[name] for name in PATHS if values.get(name)}
    for name, value in found.items():
        if isinstance(value, str):
            found[name] = _absolute(value)
        elif isinstance(value, tuple):
            found[name] = tuple(map(_absolute, value))
    return {**values, **found}


def _absolute(path: str) -> str:
    return str(Path.cwd() / path) if is_local(path) else path


def is_local(path: str) -> bool:
    """True if a parameter of PATHS names something that this process could open."""
    return "://" not in path and not path.startswith(("file:", "jdbc:", "table:"))


def are_short(paths: Iterable[str]) -> bool:
    """True if these are files of this machine, with less than SHORT_BYTES together."""
    files = list(map(Path, paths))
    return all(map(Path.is_file, files)) and sum(file.stat().st_size for file in files) < SHORT_BYTES


def require_list(path: str) -> None:
    """Raise ConfigError for a local file that is not there, or a web page: wrong usage is found before Spark starts."""
    if path.startswith(("http://", "https://")):
        raise ConfigError(
            f"{path}: found a web address, expected a file, or one on s3a://, hdfs:// or file://; download it first"
        )
    if is_local(path) and not Path(path).exists():
        raise ConfigError(f"{path}: no such file")


def spark_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds the options of a Spark job; the command gets them as ``spark``, a ``SparkOptions``."""
    for option in (
        click.option(
            "--conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=named_values,
            help="A setting of Spark, such as spark.executor.memory=4g; repeatable.",
        ),
        click.option(
            "--heap",
            metavar="SIZE",
            help="Memory of the driver's Java, such as 4g; default: that of spark-defaults.conf, else 2g.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="Where the job runs: local[4], spark://host:7077, sc://host, …; default: that of spark-defaults.conf, else "
            "local[*].",
        ),
    ):
        command = option(command)

    @wraps(command)
    def wrapper(
        *args: Any, master: str | None, heap: str | None, conf: dict[str, str], **kwargs: Any
    ) -> R:
        if not (find_spec("pyspark") and find_spec("pyarrow")):
            fail(MISSING_SPARK)
        master = conf.pop("spark.master", master)
        options = SparkOptions(master, heap, conf)
        kwargs = _with_absolute_paths(master, kwargs)
        _refuse_inside(kwargs.get("events"), kwargs.get("output"))
        try:
            result = command(*args, spark=options, **kwargs)
        finally:
            for problem in options.damage:
                click.echo(f"warning: {problem}", err=True)
        if options.damage:
            click.get_current_context().exit(EXIT_DAMAGED)
        return result

    return wrapper
