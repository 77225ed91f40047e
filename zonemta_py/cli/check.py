"""``zonemta check``."""

from pathlib import Path

import click

from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.delivery.outbound import read_password
from zonemta_py.intake.auth import load_users
from zonemta_py.intake.port import make_context


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Validate a configuration and the files it names.

    Exits 0 when `zonemta serve` could start with it, 2 with file, line, key, what was found and
    what is allowed when it could not.

    \b
    Example:
      zonemta check -c config/zonemta.yaml
    """
    config = read_config(config_path)
    for listener in config.listeners:
        make_context(listener)
        if listener.auth.users_file is not None:
            load_users(listener.auth.users_file)
    for zone in config.zones.values():
        if zone.smarthost_auth.password_file is not None:
            read_password(zone)
    listeners = [str(listener.address) for listener in config.listeners]
    if as_json:
        print_json({"ok": True, "listeners": listeners, "zones": sorted(config.zones)})
    else:
        click.echo(
            f"{config_path}: ok (listeners {', '.join(listeners)}; zones {', '.join(sorted(config.zones))})"
        )
