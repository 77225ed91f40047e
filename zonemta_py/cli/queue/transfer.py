"""``zonemta queue export`` and ``import``."""

from pathlib import Path

import click

from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.cli.progress import progress_bar
from zonemta_py.cli.queue.inspect import queue
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.storage.open import open_store


@queue.command("export")
@config_option
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@reports_errors
def export_(config_path: Path, file: Path, as_json: bool) -> None:
    """Write the whole queue into FILE, to bring it into another store or another machine.

    The relay must be down. Broken off, run it again and it goes on. The queue stays as it is: start only
    one of the two, or everybody gets the mail twice.

    \b
    Example:
      zonemta queue export -c config/zonemta.yaml queue.export
    """
    store = open_store(read_config(config_path).queue)
    try:
        with progress_bar("export", None) as advance:
            records = export_queue(store, file, advance)
    finally:
        store.close()
    _told(records, file, "in", as_json=as_json)


@queue.command("import")
@config_option
@click.argument("file", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@json_option
@reports_errors
def import_(config_path: Path, file: Path, as_json: bool) -> None:
    """Bring a queue that was exported into the empty store of this configuration.

    The relay must be down. Broken off, run it again and it goes on; until it is done no relay opens the
    queue. Ids, ages, attempts, submission keys and facts that are not yet in the event log come with it.

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
    _told(records, file, "from", as_json=as_json)


def _told(records: int, file: Path, word: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"records": records, "file": str(file)})
    else:
        click.echo(f"{records:,} records {word} {file}")
