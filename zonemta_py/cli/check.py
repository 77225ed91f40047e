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
    """Validate a configuration, and the files, directories and addresses it names.

    Exits 0 when `zonemta serve` could start with it. Otherwise prints file, line, key, the value found
    and the values allowed, and exits 2.

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
