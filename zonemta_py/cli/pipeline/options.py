"""Options that the commands of ``zonemta pipeline`` share, and the Spark session that they open.

pyspark is imported only when a job runs.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zonemta_py.cli.common import fail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

R = TypeVar("R")

EXTRA = "the pipeline needs Spark: pip install 'zonemta_py[pipeline]', and Java 17 or newer"


def named_values(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """An option's ``NAME=VALUE``, as often as it was given; or a usage error."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.BadParameter(f"'{text}' is not NAME=VALUE", context, parameter)
        found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class Where:
    """Where a job runs: the options that every job has."""

    master: str
    heap: str
    settings: dict[str, str]

    @contextmanager
    def session(self) -> "Iterator[SparkSession]":
        """The session of a job, ended with it."""
        from zonemta_py.pipeline.spark.session import open_session

        spark = open_session(self.master, self.heap, **self.settings)
        try:
            yield spark
        finally:
            spark.stop()


def spark_options(command: Callable[..., R]) -> Callable[..., R]:
    """Where a job runs, and with how much memory; the command gets a ``Where``."""
    for option in (
        click.option(
            "--conf",
            multiple=True,
            metavar="NAME=VALUE",
            callback=named_values,
            help="A setting of Spark: spark.executor.memory=4g, spark.hadoop.fs.s3a.endpoint=…",
        ),
        click.option(
            "--heap", default="2g", show_default=True, help="Memory of the driver's Java, such as 4g."
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Where the job runs: local[*], local[4], spark://host:7077, …",
        ),
    ):
        command = option(command)

    @wraps(command)
    def wrapper(*args: Any, master: str, heap: str, conf: dict[str, str], **kwargs: Any) -> R:
        if not (find_spec("pyspark") and find_spec("pyarrow")):
            fail(EXTRA)
        return command(*args, where=Where(master, heap, conf), **kwargs)

    return wrapper
