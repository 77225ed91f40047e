"""``zonemta check``."""

import socket
from pathlib import Path

import click

from zonemta_py.admin.control_client import is_running
from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.core.interpreter import slow_build
from zonemta_py.relay.preflight import check_addresses, verify, warnings


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Validate a configuration, and the files, directories and addresses it names.

    Prints the warnings that `zonemta serve` logs.

    Exits 0 when `zonemta serve` could start with it. Otherwise prints file, line, key, the value found
    and the values allowed, and exits 2.

    \b
    Example:
      zonemta check -c config/zonemta.yaml
    """
    config = read_config(config_path)
    verify(config)
    found = list(warnings(config, config.hostname or socket.getfqdn()))
    if not is_running(config.queue.directory):
        found += check_addresses(config)
    found += filter(None, [slow_build()])
    listeners = [str(listener.address) for listener in config.listeners]
    for warning in [] if as_json else found:
        click.secho(f"warning: {warning}", fg="yellow", err=True)
    if as_json:
        print_json(
            {"ok": True, "listeners": listeners, "zones": sorted(config.zones), "warnings": found}
        )
    else:
        click.echo(
            f"{config_path}: ok (listeners {', '.join(listeners)}; zones {', '.join(sorted(config.zones))})"
        )
