"""``zonemta queue export`` and ``import``."""

import asyncio
from pathlib import Path

import click

from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.cli.options import EXISTING_FILE, FILE
from zonemta_py.cli.progress import progress_bar
from zonemta_py.config.schema import Config
from zonemta_py.delivery.open_queue import open_queue
from zonemta_py.events.segment_reading import open_segments
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store


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
