"""``zonemta export``."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click

from zonemta_py.cli.common import EXIT_FAILED, read_config, reports_errors
from zonemta_py.cli.options import FILE, event_log, log_options, refuse_backwards, time_ms
from zonemta_py.cli.progress import progress_bar
from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import replaced
from zonemta_py.core.text import escaped, escaped_json
from zonemta_py.events.history import missing_events
from zonemta_py.events.log import read_log
from zonemta_py.events.peer_formats import (
    EVENTS,
    POWERMTA_COLUMNS,
    kumomta_record,
    powermta_rows,
    without_repeats,
)

MODE = 0o640  # of a new file: it has addresses
Records = Iterable[dict[str, Any]]


@click.command()
@log_options
@click.option(
    "--format",
    "format_",
    type=click.Choice(["powermta", "kumomta"]),
    required=True,
    help="PowerMTA's accounting file (CSV with a header), or KumoMTA's log (JSON lines).",
)
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="Only these events; repeatable.  [default: all of them]",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write to this file, whole or not at all, instead of standard output.",
)
@reports_errors
def export(
    config_path: Path | None, directory: Path | None, format_: str, events: tuple[str, ...], from_: datetime | None,
    to: datetime | None, output: Path | None,
) -> None:  # fmt: skip
    """Write the event log as another relay's accounting, with its names of the classes, for programs that read that.

    What the event log does not have is empty in the columns. The relay may be running: what it has not yet written to the event
    log, at most some seconds, is missing. Exits 1 when a segment is damaged or missing; the others are exported.

    \b
    Examples:
      zonemta export -c config/zonemta.yaml --format powermta --event delivered --event bounced -o acct.csv
      zonemta export -c config/zonemta.yaml --format kumomta --from 2026-11-20 --to 2026-11-21 | zstd > log.zst
    """
    refuse_backwards(from_, to)
    directory = event_log(read_config(config_path) if config_path else None, directory)
    damage: list[str] = []
    from_ms, to_ms = time_ms(from_), time_ms(to)
    wanted = frozenset(events or EVENTS)
    found = (
        record
        for record in without_repeats(
            read_log(directory, damage, from_.date() if from_ else None, _shown)
        )
        if record["event"] in wanted
        and (from_ms is None or record["time_ms"] >= from_ms)
        and (to_ms is None or record["time_ms"] < to_ms)
    )
    write: Callable[[Records, TextIO], None] = _write_csv if format_ == "powermta" else _write_lines
    with _opened(output) as file:
        write(found, file)
    damage += missing_events(directory, from_ms or 0, {})
    for text in damage:
        click.echo(escaped(f"event log: {text}"), err=True)
    if damage:
        sys.exit(EXIT_FAILED)


def _shown(paths: list[Path]) -> Iterator[Path]:
    """The segments, with a progress bar."""
    with progress_bar("segments", len(paths)) as advance:
        for path in paths:
            yield path
            advance(1)


def _write_csv(records: Records, file: TextIO) -> None:
    writer = csv.DictWriter(file, POWERMTA_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerows(powermta_rows(record))


def _write_lines(records: Records, file: TextIO) -> None:
    for record in records:
        found = kumomta_record(record)
        if found is not None:
            file.write(f"{escaped_json(json.dumps(found, ensure_ascii=False))}\n")


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that has its name only when the block has ended."""
    try:
        if path is None:
            yield sys.stdout
            sys.stdout.flush()
            return
        with replaced(path, MODE) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise LocalError(f"{path or 'standard output'}: {exc.strerror or exc}") from exc
