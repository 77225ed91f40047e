"""Progress indicators on stderr, shown only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


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
