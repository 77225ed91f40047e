"""``zonemta queue shape``, ``destinations`` and ``tenants``: how much is queued, by destination and tenant."""

from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.requests import DestinationsRequest, ShapeRequest, TenantsRequest
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
from zonemta_py.cli.reason import reason_text
from zonemta_py.core.model import AGES_MIN, STATES


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


@click.command()
@config_option
@zone_option
@click.option(
    "--troubled",
    is_flag=True,
    help="Only those that something keeps waiting, or where attempts failed in the last 5 minutes.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="The most destinations."
)
@json_option
@reports_errors
def destinations(config_path: Path, zone: str | None, troubled: bool, limit: int, as_json: bool) -> None:
    """List the destinations with most recipients, what was attempted lately, and what keeps their mail waiting.

    Lately: in the last 5 minutes, in all zones. The provider is the one whose limits the mail has, as a running relay has found it.

    \b
    Example:
      zonemta queue destinations -c config/zonemta.yaml --troubled
    """
    rows = list(rows_of(config_path, DestinationsRequest(zone, troubled, limit), relay_only=troubled))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("no destination has trouble" if troubled else "the queue is empty")
        return
    table = Table(box=None, pad_edge=False)
    counted, recent = ("total", *STATES), ("delivered", "deferred", "bounced")
    names = "zone", "destination", "provider"
    for title in (*names, *counted, *(f"{name} lately" for name in recent), "why"):
        table.add_column(
            title.replace("_", " "),
            justify="left" if title in (*names, "why") else "right",
            overflow="fold",
        )
    for row in rows:
        why = reason_text(row["why"]) if row["why"] else ""
        counts = [*(row[name] for name in counted), *(row["recent"][name] for name in recent)]
        table.add_row(*(row[name] for name in names), *map(str, counts), why)
    print_table(table)


@click.command()
@config_option
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="The most tenants."
)
@json_option
@reports_errors
def tenants(config_path: Path, limit: int, as_json: bool) -> None:
    """Count the recipients of each tenant, most first.

    \b
    Example:
      zonemta queue tenants -c config/zonemta.yaml
    """
    table = Table("tenant", "queued", box=None, pad_edge=False)
    for row in rows_of(config_path, TenantsRequest(limit)):
        if as_json:
            print_json(row)
        table.add_row(row["tenant"], str(row["queued"]))
    if not as_json:
        print_table(table)
