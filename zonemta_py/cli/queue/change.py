"""The commands of ``zonemta queue`` that change messages: flush, hold, release, delete, repair."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import (
    BounceRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    ReleaseRequest,
    Request,
)
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    domain_option,
    echo,
    json_option,
    print_json,
    read_config,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.events.log import gaps, read_log
from zonemta_py.relay.repair import keep_copy, repair

SHOWN = 50  # lines of a repair that are printed without --json


def takes_message(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The message of a command: its argument MESSAGE, or its option ``--message``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapper(argument: str | None, option: str | None, **values: Any) -> None:
            if argument and option and argument != option:
                raise click.UsageError("MESSAGE and --message name different messages")
            message = argument or option
            if required and not message:
                raise click.UsageError("Missing argument 'MESSAGE'.")
            command(message=message, **values)

        message_option = click.option(
            "--message", "option", metavar="MESSAGE", help="The same as the argument MESSAGE."
        )
        message_argument = click.argument(
            "argument", metavar="MESSAGE" if required else "[MESSAGE]", required=False
        )
        return message_argument(message_option(wrapper))

    return decorate


@click.command()
@config_option
@zone_option
@domain_option
@takes_message(required=False)
@json_option
@reports_errors
def flush(
    config_path: Path, zone: str | None, domain: str | None, message: str | None, as_json: bool
) -> None:
    """Make deferred recipients due now, and try suspended destinations.

    \b
    Examples:
      zonemta queue flush -c config/zonemta.yaml --zone bulk
      zonemta queue flush -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, FlushRequest(zone, domain, message)):
        if as_json:
            print_json(row)
            continue
        text = f"{_counted(row['woken'], 'deferred recipient')} due now"
        if row["tried"]:
            text += f", {_counted(row['tried'], 'suspended destination')} tried now"
        echo(text)
        if row["stopped"]:
            what = f"{_counted(row['stopped'], 'recipient')} stopped: an operator has suspended what sends them"
            echo(f"{what}; `zonemta suspend --list`")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"


@click.command()
@config_option
@takes_message(required=True)
@click.option("--recipient", metavar="ADDRESS", help="Only this recipient; the others stay.")
@json_option
@reports_errors
def delete(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Remove a message, or one of its recipients, without a report.

    Recipients in a transaction are skipped and counted; exits 1 if there were any.

    \b
    Example:
      zonemta queue delete -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --recipient ann@example.org
    """
    _change(config_path, DeleteRequest(message, recipient), "deleted", as_json=as_json)


@click.command()
@config_option
@takes_message(required=True)
@click.option("--recipient", metavar="ADDRESS", help="Only this recipient; the others stay.")
@click.option(
    "--reason", default="returned by the operator", show_default=True, help="What the report says."
)
@json_option
@reports_errors
def bounce(config_path: Path, message: str, recipient: str | None, reason: str, as_json: bool) -> None:
    """Return a message, or one of its recipients, to its sender: it fails, with one report.

    The sender's NOTIFY is respected. Recipients in a transaction are skipped and counted; exits 1 if there
    were any.

    \b
    Example:
      zonemta queue bounce -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --reason "sent by mistake"
    """
    _change(config_path, BounceRequest(message, recipient, reason), "bounced", as_json=as_json)


@click.command()
@config_option
@takes_message(required=True)
@click.option("--recipient", metavar="ADDRESS", help="Only this recipient; the others are not held.")
@json_option
@reports_errors
def hold(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Keep a message in the queue, unsent, until it is released.

    Recipients in a transaction are skipped and counted; exits 1 if there were any.

    \b
    Example:
      zonemta queue hold -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    _change(config_path, HoldRequest(message, recipient), "held", as_json=as_json)


def _change(config_path: Path, request: Request, done: str, *, as_json: bool) -> None:
    """Execute ``request`` and print its row; ``done`` names the count of changed recipients."""
    in_flight = 0
    for row in rows_of(config_path, request):
        in_flight += row["in_flight"]
        if as_json:
            print_json(row)
        else:
            echo(f"{row[done]} recipients {done}, {row['in_flight']} in flight and skipped")
    if in_flight:
        sys.exit(EXIT_FAILED)


@click.command()
@config_option
@takes_message(required=True)
@click.option("--recipient", metavar="ADDRESS", help="Only this recipient; the others stay held.")
@json_option
@reports_errors
def release(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Release held recipients of a message: they are due at once.

    \b
    Example:
      zonemta queue list -c config/zonemta.yaml --state held
      zonemta queue release -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, ReleaseRequest(message, recipient)):
        print_json(row) if as_json else echo(f"{row['released']} recipients released")


@click.command("repair")
@config_option
@json_option
@reports_errors
def repair_(config_path: Path, as_json: bool) -> None:
    """Repair a damaged queue. The relay must be down; a copy of the queue is kept.

    The database files are repaired, every message is read and verified, and recipients and markers are
    compared with the event log. Exits 1 when accepted recipients are lost, and lists them.

    \b
    Example:
      zonemta queue repair -c config/zonemta.yaml
    """
    config = read_config(config_path)
    copy = keep_copy(config)
    click.echo(f"a copy is kept in {copy}", err=True)
    damage = list(gaps(config.events.directory, {}))
    rows = asyncio.run(repair(config, read_log(config.events.directory, damage)))
    for text in damage:
        click.echo(f"event log: {text}", err=True)
    for number, row in enumerate(rows):
        if as_json:
            print_json(row)
        elif number < SHOWN or row["what"] == "lost":
            recipient = f" to {row['recipient']}" if row["recipient"] else ""
            echo(f"{row['what']}: {row['message']}{recipient}: {row['reason']}")
    counts = Counter(row["what"] for row in rows)
    if as_json:
        print_json(
            {"copy": str(copy), **{what: counts[what] for what in ("restored", "removed", "lost")}}
        )
    else:
        echo(f"{counts['restored']} restored, {counts['removed']} removed, {counts['lost']} lost")
    if counts["lost"]:
        sys.exit(EXIT_FAILED)
