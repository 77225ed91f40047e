"""``zonemta queue flush`` and ``zonemta queue repair``."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import click

from zonemta_py.admin.requests import FlushRequest
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
from zonemta_py.cli.queue.mail import takes_message
from zonemta_py.events.log import gaps, read_log
from zonemta_py.relay.repair import keep_copy, repair

SHOWN = 50  # lines of a repair that are printed without --json


@click.command()
@config_option
@zone_option
@domain_option
@takes_message
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


@click.command("repair")
@config_option
@json_option
@reports_errors
def repair_(config_path: Path, as_json: bool) -> None:
    """Repair a damaged queue. The relay must be down; a copy of the queue is kept.

    The database files are repaired, every message is read and verified, and recipients and markers are
    compared with the event log. What LevelDB's log has of the last mail is read with its checksums before: a flipped bit
    is set right, and a damaged part is left out, kept in the directory `lost`, and named with its recipients. Exits 1 when
    accepted recipients are lost, and lists them, or when a part was damaged.

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
        elif number < SHOWN or row["what"] in ("lost", "damaged"):
            recipient = f" to {row['recipient']}" if row["recipient"] else ""
            message = f" {row['message']}{recipient}:" if row["message"] else ""
            echo(f"{row['what']}:{message} {row['reason']}")
    counts = Counter(row["what"] for row in rows)
    if as_json:
        print_json(
            {
                "copy": str(copy),
                **{what: counts[what] for what in ("restored", "removed", "damaged", "lost")},
            }
        )
    else:
        places = f", {counts['damaged']} places damaged" if counts["damaged"] else ""
        echo(
            f"{counts['restored']} restored, {counts['removed']} removed, {counts['lost']} lost{places}"
        )
    if counts["lost"] or counts["damaged"]:
        sys.exit(EXIT_FAILED)
