"""The commands of ``zonemta queue`` that only read: summary, list, show, state, body, check, stats."""

import base64
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.admin.requests import (
    BodyRequest,
    CheckRequest,
    DestinationsRequest,
    ListRequest,
    Request,
    Row,
    ShapeRequest,
    ShowRequest,
    StateRequest,
    StatsRequest,
    SummaryRequest,
    TenantsRequest,
    UnreachableClearRequest,
    UnreachableRequest,
)
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    domain_option,
    echo,
    json_option,
    print_json,
    print_table,
    reason_text,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.options import STATE
from zonemta_py.cli.queue.change import label_options, rows_of
from zonemta_py.core import clock
from zonemta_py.core.model import AGES_MIN, STATES
from zonemta_py.core.text import ago, time_left


@click.command()
@config_option
@json_option
@reports_errors
def summary(config_path: Path, as_json: bool) -> None:
    """Count recipients per zone and state, with the largest destinations.

    A running relay keeps these numbers: they cost nothing. in flight: a session delivers them now; unreachable: their
    destination does not answer; suspended: an operator has suspended what sends them; deferred: they wait for their next
    attempt; not before: for the time that their submitter gave; held: for `zonemta queue release`.

    \b
    Example:
      zonemta queue summary -c config/zonemta.yaml
    """
    rows = list(rows_of(config_path, SummaryRequest()))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("the queue is empty")
        return
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


@click.command("list")
@config_option
@zone_option
@domain_option
@click.option("--state", type=STATE, help="Only recipients in this state.")
@label_options
@click.option("--limit", type=click.IntRange(1), help="The maximum number of recipients.")
@json_option
@reports_errors
def list_(config_path: Path, as_json: bool, **filters: Any) -> None:
    """List recipients, oldest message first within each zone.

    \b
    Examples:
      zonemta queue list -c config/zonemta.yaml --domain example.org --state deferred
      zonemta queue list -c config/zonemta.yaml --tenant acme --campaign autumn-sale
    """
    for row in rows_of(config_path, ListRequest(**filters)):
        if as_json:
            print_json(row)
        else:
            echo(
                f"{row['message']}  {row['zone']:<12} {row['state']:<11} "
                f"attempts {row['attempts']}  {row['recipient']}  {reason_text(row['why'])}"
            )


@click.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def show(config_path: Path, message: str, as_json: bool) -> None:
    """Show everything about one message except its body.

    \b
    Example:
      zonemta queue show -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, ShowRequest(message)):
        print_json(row) if as_json else _print_message(row)


def _print_message(row: Row) -> None:
    origin = row["origin"]
    accepted = f"{clock.utc(row['created_ms']):%Y-%m-%d %H:%M:%S} UTC ({ago(row['created_ms'])} ago)"
    source = origin["user"] or origin["client_ip"] or "this relay"
    echo(f"message    {row['message']}")
    echo(f"sender     <{row['sender']}>")
    echo(f"accepted   {accepted}")
    echo(f"from       {source} by {origin['protocol'] or 'report'}")
    for name, value in (("tenant", origin["tenant"]), ("campaign", row["campaign"])):
        if value:
            echo(f"{name:<10} {value}")
    if row["tags"]:
        echo(f"tags       {', '.join(row['tags'])}")
    options = row["options"]
    for name, at_ms in (("not before", options["not_before_ms"]), ("expires", options["expires_ms"])):
        if at_ms:
            echo(f"{name:<10} {clock.utc(at_ms):%Y-%m-%d %H:%M:%S} UTC")
    echo(f"body       {row['body_bytes']} bytes in {row['chunks']} chunks")
    echo("\n" + row["header"].replace("\r\n", "\n"))
    for recipient in row["recipients"]:
        echo(
            f"  <{recipient['recipient']}> {recipient['state']} in {recipient['zone']}, "
            f"attempts {recipient['attempts']}"
        )
        echo(f"      {reason_text(recipient['why'])}")


@click.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def state(config_path: Path, message: str, as_json: bool) -> None:
    """Print the state of a message in qmail's terms (S1 to S5) and Kannader's.

    \b
    Example:
      zonemta queue state -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, StateRequest(message)):
        if as_json:
            print_json(row)
            continue
        kannader = f"; {row['kannader']}" if row["kannader"] else ""
        echo(f"{row['qmail']}  {row['meaning']}{kannader}")
        for recipient in row["recipients"]:
            echo(f"  {recipient['index']}  <{recipient['recipient']}> {recipient['kannader']}")


@click.command()
@config_option
@click.argument("message")
@reports_errors
def body(config_path: Path, message: str) -> None:
    """Print a message as it will be sent: header, empty line, body.

    \b
    Example:
      zonemta queue body -c config/zonemta.yaml 019a1b2c3d4e000001abcdef > message.eml
    """
    for row in rows_of(config_path, BodyRequest(message)):
        sys.stdout.buffer.write(base64.b64decode(row["chunk"]))
    sys.stdout.buffer.flush()


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Verify the queue: markers, chunks, checksums, each recipient in exactly one state.

    Exits 1 when there are problems.

    \b
    Example:
      zonemta queue check -c config/zonemta.yaml
    """
    problems = 0
    for row in rows_of(config_path, CheckRequest()):
        problems = row.get("problems", problems)
        if as_json:
            print_json(row)
        elif "problem" in row:
            echo(row["problem"])
    if not as_json:
        echo(f"{problems} problems" if problems else "no problems found")
    if problems:
        sys.exit(EXIT_FAILED)


@click.command()
@config_option
@json_option
@reports_errors
def stats(config_path: Path, as_json: bool) -> None:
    """Print the counters of the running relay since its start: fsyncs, transitions, compactions.

    \b
    Example:
      zonemta queue stats -c config/zonemta.yaml
    """
    for row in rows_of(config_path, StatsRequest(), relay_only=True):
        if as_json:
            print_json(row)
            continue
        for name, value in row.items():
            text = ("no", "yes")[value] if isinstance(value, bool) else f"{value:,}"
            echo(f"{name:<12} {text}")


# ---- ``zonemta queue shape``, ``destinations`` and ``tenants``: how much is queued, by destination and tenant.


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


# ---- ``zonemta queue unreachable``.


@click.command()
@config_option
@click.option(
    "--clear",
    metavar="IP",
    help="Remove this address, or `all`, from the list: it is tried again at once.",
)
@json_option
@reports_errors
def unreachable(config_path: Path, clear: str | None, as_json: bool) -> None:
    """List addresses whose connections timed out. After two timeouts an address is skipped for a while.

    \b
    Examples:
      zonemta queue unreachable -c config/zonemta.yaml
      zonemta queue unreachable -c config/zonemta.yaml --clear 192.0.2.1
    """
    request: Request = UnreachableRequest() if clear is None else UnreachableClearRequest(clear)
    for row in rows_of(config_path, request, relay_only=clear is not None):
        if as_json:
            print_json(row)
        elif "cleared" in row:
            click.echo(f"{row['cleared']} addresses removed from the list")
        else:
            state = f"skipped for {row['rests_s']} s" if row["rests_s"] else "still tried"
            from_source = f" from {row['source']}" if row["source"] else ""
            at = f"{row['ip']} port {row['port']}" if row["port"] != 25 else row["ip"]
            click.echo(
                f"{at}{from_source}  {row['timeouts']} timeouts in a row, the last {row['last_s']} s ago, {state}"
            )
