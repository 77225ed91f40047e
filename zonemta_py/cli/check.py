"""``zonemta check``."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click

from zonemta_py.admin.control_client import ask, is_running
from zonemta_py.admin.requests import SummaryRequest
from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.config.schema import Config
from zonemta_py.core.errors import LocalError
from zonemta_py.core.interpreter import slow_build
from zonemta_py.core.model import STATES
from zonemta_py.core.text import escaped
from zonemta_py.queue.upkeep.startup_scan import zones_on_disk
from zonemta_py.relay.preflight import check_addresses, verify, warnings
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store, store_directory


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Validate a configuration, and the files, directories and addresses it names.

    Prints the warnings that `zonemta serve` logs, and zones with mail that the configuration lacks.

    Exits 0 when `zonemta serve` could start with it. Otherwise prints file, line, key, the value found
    and the values allowed, and exits 2.

    \b
    Example:
      zonemta check -c config/zonemta.yaml
    """
    config = read_config(config_path)
    verify(config)
    found = list(warnings(config, config.hostname or socket.getfqdn()))
    running = is_running(config.queue.directory)
    if not running:
        found += check_addresses(config)
    found += _missing_zones(config, running=running)
    found += filter(None, [slow_build()])
    listeners = [str(listener.address) for listener in config.listeners]
    for warning in [] if as_json else found:
        click.secho(f"warning: {escaped(warning)}", fg="yellow", err=True)
    if as_json:
        print_json(
            {"ok": True, "listeners": listeners, "zones": sorted(config.zones), "warnings": found}
        )
    else:
        click.echo(
            f"{config_path}: ok (listeners {', '.join(listeners)}; zones {', '.join(sorted(config.zones))})"
        )


def _missing_zones(config: Config, *, running: bool) -> Iterator[str]:
    """A warning for each zone that has mail and is not in ``config``, as far as the queue can be read here."""
    try:
        found = _zones_of_relay(config) if running else _zones_on_disk(config)
    except LocalError:
        return
    for zone in sorted(found - config.zones.keys()):
        moves = config.zone_removed == "default"
        what = (
            "a start moves it to default, a reload is refused"
            if moves
            else "start and reload are refused"
        )
        yield f"zones: mail waits in zone '{zone}', which this configuration lacks: {what} (zone_removed)"


def _zones_of_relay(config: Config) -> set[str]:
    rows = ask(config.queue.directory, SummaryRequest())
    return {row["zone"] for row in rows if any(row[state] for state in STATES)}


def _zones_on_disk(config: Config) -> set[str]:
    directory = store_directory(config.queue)
    if directory is None or not directory.exists():
        return set()
    store = open_store(config.queue, access=Access.READ)
    try:
        return zones_on_disk(store)
    finally:
        store.close()
