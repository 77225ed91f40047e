"""``zonemta check``."""

from pathlib import Path

import click

from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.relay.preflight import verify


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Validate a configuration, and the files, folders and addresses it names.

    Exits 0 when `zonemta serve` could start with it, 2 with file, line, key, what was found and
    what is allowed when it could not.

    \b
    Example:
      zonemta check -c config/zonemta.yaml
    """
    config = read_config(config_path)
    verify(config)
    listeners = [str(listener.address) for listener in config.listeners]
    if as_json:
        print_json({"ok": True, "listeners": listeners, "zones": sorted(config.zones)})
    else:
        click.echo(
            f"{config_path}: ok (listeners {', '.join(listeners)}; zones {', '.join(sorted(config.zones))})"
        )
