"""``zonemta audit``."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    json_option,
    print_json,
    read_config,
    reports_errors,
)
from zonemta_py.cli.progress import spinner
from zonemta_py.cli.queue.inspect import rows_of
from zonemta_py.core.codec import from_json
from zonemta_py.events.audit import Audit
from zonemta_py.events.segments import read_events


@click.command()
@config_option
@json_option
@reports_errors
def audit(config_path: Path, as_json: bool) -> None:
    """Prove from queue and event log that every accepted recipient is accounted for.

    For each zone and day of acceptance: accepted = queued + delivered + bounced + expired + deleted
    + lost. Lists every uncertain delivery: a crash fell between the peer's answer and our record of
    it, so the peer may have the message twice. Exits 1 when a recipient has not exactly one outcome
    or place. Works while the relay runs.

    \b
    Example:
      zonemta audit -c config/zonemta.yaml
    """
    config = read_config(config_path)
    with spinner("reading queue and event log"):
        found = Audit()
        limit, node = _places(found, config_path)
        for record in read_events(config.events.directory):
            if record["node"] != node or record["seq"] <= limit:
                found.add(record)
    problems = list(found.problems())
    rows = list(found.rows())
    if as_json:
        for row in rows:
            print_json(row)
        for record in found.uncertain:
            print_json({"uncertain": record})
        for problem in problems:
            print_json({"problem": problem})
        print_json({"problems": len(problems), "uncertain": len(found.uncertain)})
    else:
        _print(rows, found.uncertain, problems)
    if problems:
        sys.exit(EXIT_FAILED)


def _places(found: Audit, config_path: Path) -> tuple[float, str]:
    """Feed the queue's recipients and outbox; returns the last sequence number they know, and the node."""
    limit, node = float("inf"), ""
    rows: Iterator[dict[str, Any]] = rows_of(config_path, "places")
    for row in rows:
        if "seq" in row:
            limit, node = row["seq"] or float("inf"), row["node"]
        for line in row.get("facts", "").splitlines():
            found.add(from_json(line))
        for message, index, zone in row.get("places", ()):
            found.add_place(message, index, zone)
    return limit, node


def _print(rows: list[dict[str, Any]], uncertain: list[dict[str, Any]], problems: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name in ("zone", "day") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)
    for record in uncertain:
        click.echo(f"uncertain: {record['message']} to {record['recipient']} in {record['zone']}")
    for problem in problems:
        click.echo(f"problem: {problem}")
    click.echo("every recipient is accounted for" if not problems else f"{len(problems)} problems")
