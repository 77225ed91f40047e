"""``zonemta queue repair``, ``export`` and ``import``: the whole queue, while the relay is down."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import click

from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    echo,
    json_option,
    print_json,
    progress_bar,
    read_config,
    reports_errors,
)
from zonemta_py.cli.options import EXISTING_FILE, FILE
from zonemta_py.config.schema import Config
from zonemta_py.events.log import gaps, read_log
from zonemta_py.events.segment_reading import open_segments
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.relay.runner import keep_copy, repair
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store

SHOWN = 50  # lines of a repair that are printed without --json


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


@click.command("export")
@config_option
@click.argument("file", type=FILE)
@json_option
@reports_errors
def export_(config_path: Path, file: Path, as_json: bool) -> None:
    """Write the whole queue to FILE, to move it to another store or machine.

    The relay must be down. Run an interrupted export again to continue it. The event log of a relay that was
    killed is finished first; apart from that the queue does not change: start a relay on only one of the
    two, or every recipient gets the mail twice.

    \b
    Example:
      zonemta queue export -c config/zonemta.yaml queue.export
    """
    config = read_config(config_path)
    store = open_store(config.queue, access=Access.READ)
    try:
        if open_segments(config.events.directory, (store.get(keys.META_NODE) or b"").decode()):
            store.close()
            asyncio.run(_finish_log(config))
            store = open_store(config.queue, access=Access.READ)
        with progress_bar("export", None) as advance:
            records = export_queue(store, file, advance)
    finally:
        store.close()
    _print_count(records, file, "to", as_json=as_json)


@click.command("import")
@config_option
@click.argument("file", type=EXISTING_FILE)
@json_option
@reports_errors
def import_(config_path: Path, file: Path, as_json: bool) -> None:
    """Read an exported queue from FILE into the empty store of this configuration.

    The relay must be down. Run an interrupted import again to continue it; until it is complete no relay
    opens the queue. Ids, ages, attempts, submission keys, and events that are not yet in the event log,
    are imported too.

    \b
    Example:
      zonemta queue import -c new.yaml queue.export
    """
    store = open_store(read_config(config_path).queue)
    try:
        with progress_bar("import", None) as advance:
            records = import_queue(store, file, advance)
    finally:
        store.close()
    _print_count(records, file, "from", as_json=as_json)


async def _finish_log(config: Config) -> None:
    """Export the events of a killed relay and seal its log: the imported queue has another node and cannot.

    A log that cannot be written is logged, and its events stay in the queue and in the export.
    """
    queue = open_queue(config, access=Access.EXISTING)
    queue.commits.start()
    try:
        exporter = Exporter(queue, config.events)
        await exporter.start()
        await exporter.close()
    finally:
        await queue.close()


def _print_count(records: int, file: Path, preposition: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"records": records, "file": str(file)})
    else:
        click.echo(f"{records:,} records {preposition} {file}")
