"""``zonemta queue summary`` and ``shape``: how much is queued, by zone, destination, tenant, state and age."""

from heapq import nlargest
from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.requests import (
    DestinationsRequest,
    Request,
    Row,
    ShapeRequest,
    SummaryRequest,
    TenantsRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    EXIT_USAGE,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    read_config,
    reason_text,
    reports_errors,
    zone_option,
)
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.model import AGES_MIN, STATES
from zonemta_py.core.text import ago, no_such, time_left

DESTINATIONS, TENANTS = 20, 100  # that are shown if nothing else is said
NOTHING = {
    "zone": "the queue is empty",
    "destination": "the queue is empty",
    "tenant": "no tenant has mail",
}


@click.command()
@config_option
@click.option(
    "--by",
    type=click.Choice(["zone", "destination", "tenant"]),
    default="zone",
    show_default=True,
    help="Which rows there are.",
)
@zone_option
@click.option(
    "--troubled",
    is_flag=True,
    help="Only destinations that something keeps waiting, or where attempts failed in the last 5 minutes.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="The most rows, the largest first.  [default: all zones, 20 destinations, 100 tenants]",
)
@json_option
@reports_errors
def summary(
    config_path: Path, by: str, zone: str | None, troubled: bool, limit: int | None, as_json: bool
) -> None:
    """Count recipients by state: per zone with the largest destinations, per destination, or per tenant.

    A running relay keeps these numbers: they cost nothing. in flight: a session delivers them now; unreachable: their
    destination does not answer; suspended: an operator has suspended what sends them; deferred: they wait for their next
    attempt; not before: for the time that their submitter gave; held: for `zonemta queue release`.

    By destination: also what was attempted there in the last 5 minutes, in all zones, and what keeps its mail waiting. The
    provider is the one whose limits the mail has, as a running relay has found it. By tenant there is only the sum.

    \b
    Examples:
      zonemta queue summary -c config/zonemta.yaml
      zonemta queue summary -c config/zonemta.yaml --by destination --troubled
      zonemta queue summary -c config/zonemta.yaml --by tenant
    """
    if troubled and by != "destination":
        raise click.UsageError("--troubled goes with --by destination")
    if zone is not None and by == "tenant":
        raise click.UsageError("--zone does not go with --by tenant")
    requests: dict[str, Request] = {
        "zone": SummaryRequest(),
        "destination": DestinationsRequest(zone, troubled, limit or DESTINATIONS),
        "tenant": TenantsRequest(limit or TENANTS),
    }
    rows = list(rows_of(config_path, requests[by], relay_only=troubled))
    if by == "zone":
        rows = [row for row in rows if zone in (None, row["zone"])]
        if limit is not None:
            rows = nlargest(limit, rows, key=lambda row: sum(row[state] for state in STATES))
        if zone is not None and not rows:
            _check_zone(config_path, zone)
    if as_json:
        for row in rows:
            print_json(row)
    elif not rows:
        echo("no destination has trouble" if troubled else NOTHING[by])
    else:
        {"zone": _print_zones, "destination": _print_destinations, "tenant": _print_tenants}[by](rows)


def _check_zone(config_path: Path, zone: str) -> None:
    """Exit with a usage error for a zone that the file does not have; a file with a mistake is no obstacle while a relay runs."""
    try:
        zones = read_config(config_path).zones
    except ConfigError:
        return
    if zone not in zones:
        fail(no_such("zone", zone, zones), EXIT_USAGE)


def _print_zones(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("zone", *STATES, "oldest", "next due", "largest destinations"):
        table.add_column(title.replace("_", " "), justify="right" if title in STATES else "left")
    for row in rows:
        table.add_row(
            row["zone"],
            *(str(row[state]) for state in STATES),
            f"< {ago(row['oldest_ms'])}" if row["oldest_ms"] else "",
            time_left(row["next_due_ms"]),
            ", ".join(f"{name} {count}" for name, count in row["destinations"].items()),
        )
    print_table(table)
    for row in rows:
        for destination, why in row["unreachable_destinations"].items():
            echo(f"{row['zone']}/{destination}: {reason_text(why)}")
    if any(row["counting"] for row in rows):
        echo("counting: the relay has not yet read all recipients of before its start")


def _print_destinations(rows: list[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    counted, recent = ("total", *STATES), ("delivered", "deferred", "bounced")
    names = "zone", "destination", "provider"
    for title in (*names, *counted, *(f"{name} lately" for name in recent), "why"):
        is_text = title in (*names, "why")
        table.add_column(
            title.replace("_", " "), justify="left" if is_text else "right", overflow="fold"
        )
    for row in rows:
        why = reason_text(row["why"]) if row["why"] else ""
        counts = [*(row[name] for name in counted), *(row["recent"][name] for name in recent)]
        table.add_row(*(row[name] for name in names), *map(str, counts), why)
    print_table(table)


def _print_tenants(rows: list[Row]) -> None:
    table = Table("tenant", "queued", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["tenant"], str(row["queued"]))
    print_table(table)


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
