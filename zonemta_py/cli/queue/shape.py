"""``zonemta queue shape``."""

from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.requests import ShapeRequest
from zonemta_py.cli.common import (
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.core.model import AGES_MIN


@click.command()
@config_option
@zone_option
@click.option(
    "--state",
    type=click.Choice(["waiting", "deferred", "not_before", "held"]),
    help="Only recipients in this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The most destinations, the largest first.",
)
@json_option
@reports_errors
def shape(config_path: Path, zone: str | None, state: str | None, limit: int, as_json: bool) -> None:
    """Count recipients by destination and age in minutes, as Postfix's qshape does.

    Old mail in one row is a destination that has a problem; in all rows, a relay that has one.

    \b
    Example:
      zonemta queue shape -c config/zonemta.yaml --state deferred
    """
    rows = list(rows_of(config_path, ShapeRequest(zone, state, limit)))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("the queue is empty")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("zone", "destination", "total", *map(str, AGES_MIN), f"{AGES_MIN[-1]}+"):
        table.add_column(title, justify="left" if title in ("zone", "destination") else "right")
    for row in rows:
        table.add_row(row["zone"], row["destination"], str(row["total"]), *map(str, row["ages"]))
    print_table(table)
