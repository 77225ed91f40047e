"""``zonemta queue …``, the commands that change something: flush, hold, release, delete, repair, dead addresses."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import click

from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    json_option,
    print_json,
    read_config,
    reports_errors,
)
from zonemta_py.cli.queue.inspect import domain_option, queue, rows_of, zone_option
from zonemta_py.events.segments import read_events
from zonemta_py.relay.repair import keep_copy, repair

SHOWN = 50  # lines of a repair that are printed without --json


@queue.command()
@config_option
@zone_option
@domain_option
@click.option("--message", help="Only this message.")
@json_option
@reports_errors
def flush(
    config_path: Path, zone: str | None, domain: str | None, message: str | None, as_json: bool
) -> None:
    """Make deferred recipients due now, and try destinations that rest.

    \b
    Example:
      zonemta queue flush -c config/zonemta.yaml --zone bulk
    """
    for row in rows_of(config_path, "flush", zone=zone, domain=domain, message=message):
        print_json(row) if as_json else click.echo(f"{row['woken']} recipients are due now")


@queue.command()
@config_option
@click.argument("message")
@click.option("--recipient", help="Only this recipient; the others stay.")
@json_option
@reports_errors
def delete(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Remove a message, or one recipient of it, without a report.

    Recipients in the middle of a transaction are left alone and counted; exits 1 if there were any.

    \b
    Example:
      zonemta queue delete -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --recipient ann@example.org
    """
    busy = 0
    for row in rows_of(config_path, "delete", message=message, recipient=recipient):
        busy += row["in_flight"]
        if as_json:
            print_json(row)
        else:
            click.echo(
                f"{row['deleted']} recipients deleted, {row['in_flight']} in flight and left alone"
            )
    if busy:
        sys.exit(EXIT_FAILED)


@queue.command()
@config_option
@click.argument("message")
@click.option("--recipient", help="Only this recipient; the others go on.")
@json_option
@reports_errors
def hold(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Keep a message in the queue, unsent, until it is released.

    Recipients in the middle of a transaction are left alone and counted; exits 1 if there were any.

    \b
    Example:
      zonemta queue hold -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    busy = 0
    for row in rows_of(config_path, "hold", message=message, recipient=recipient):
        busy += row["in_flight"]
        if as_json:
            print_json(row)
        else:
            click.echo(f"{row['held']} recipients held, {row['in_flight']} in flight and left alone")
    if busy:
        sys.exit(EXIT_FAILED)


@queue.command()
@config_option
@click.argument("message")
@click.option("--recipient", help="Only this recipient; the others stay held.")
@json_option
@reports_errors
def release(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Let held recipients of a message be sent, at once.

    \b
    Example:
      zonemta queue list -c config/zonemta.yaml --state held
      zonemta queue release -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, "release", message=message, recipient=recipient):
        print_json(row) if as_json else click.echo(f"{row['released']} recipients released")


@queue.command("dead-addresses")
@config_option
@click.option("--clear", metavar="IP", help="Forget this address, or `all`: it is tried again at once.")
@json_option
@reports_errors
def dead_addresses(config_path: Path, clear: str | None, as_json: bool) -> None:
    """List addresses whose connections timed out. After two timeouts one is left alone for an hour.

    \b
    Examples:
      zonemta queue dead-addresses -c config/zonemta.yaml
      zonemta queue dead-addresses -c config/zonemta.yaml --clear 192.0.2.1
    """
    for row in rows_of(config_path, "dead", clear=clear):
        if as_json:
            print_json(row)
        elif "cleared" in row:
            click.echo(f"{row['cleared']} addresses forgotten")
        else:
            rest = f"left alone for {row['rests_s']} s" if row["rests_s"] else "still tried"
            click.echo(
                f"{row['ip']}  timed out {row['last_s']} s ago, {row['timeouts']} in a row, {rest}"
            )


@queue.command("repair")
@config_option
@json_option
@reports_errors
def repair_(config_path: Path, as_json: bool) -> None:
    """Recover what is whole from a damaged queue. The relay must be down; a copy is kept.

    LevelDB puts its files together again; every message is read and checked; recipients and markers
    are compared with the event log. Exits 1 when something accepted is lost, and names it.

    \b
    Example:
      zonemta queue repair -c config/zonemta.yaml
    """
    config = read_config(config_path)
    copy = keep_copy(config)
    click.echo(f"a copy is kept in {copy}", err=True)
    rows = asyncio.run(repair(config, read_events(config.events.directory)))
    for number, row in enumerate(rows):
        if as_json:
            print_json(row)
        elif number < SHOWN or row["what"] == "lost":
            who = f" to {row['recipient']}" if row["recipient"] else ""
            click.echo(f"{row['what']}: {row['message']}{who}: {row['reason']}")
    counts = Counter(row["what"] for row in rows)
    if as_json:
        print_json(
            {"copy": str(copy), **{what: counts[what] for what in ("restored", "removed", "lost")}}
        )
    else:
        click.echo(f"{counts['restored']} restored, {counts['removed']} removed, {counts['lost']} lost")
    if counts["lost"]:
        sys.exit(EXIT_FAILED)
