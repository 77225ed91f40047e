"""``zonemta reload``."""

from pathlib import Path

import click

from zonemta_py.admin.requests import ReloadRequest
from zonemta_py.cli.common import (
    EXIT_USAGE,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    reports_errors,
)
from zonemta_py.cli.queue.access import rows_of


@click.command()
@config_option
@json_option
@reports_errors
def reload(config_path: Path, as_json: bool) -> None:
    """Let the running relay read its configuration again, as SIGHUP does, and say what changed.

    Files that it names (certificates, users, DKIM keys) are read again. Exits 2 and changes nothing when
    the configuration cannot be used, or when a change needs a restart; exits 1 when no relay is running.

    \b
    Example:
      zonemta reload -c config/zonemta.yaml
    """
    for row in rows_of(config_path, ReloadRequest(), relay_only=True):
        if "refused" in row:
            fail(f"not reloaded: {row['refused']}", EXIT_USAGE)
        if as_json:
            print_json(row)
        else:
            echo("reloaded, changed: " + (", ".join(row["changed"]) or "no key"))
        for warning in row["warnings"]:
            click.secho(f"warning: {warning}", fg="yellow", err=True)
