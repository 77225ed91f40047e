"""``zonemta log-level``."""

from pathlib import Path

import click

from zonemta_py.admin.requests import LogLevel, LogLevelRequest
from zonemta_py.cli.common import config_option, echo, reports_errors
from zonemta_py.cli.queue.access import rows_of


@click.command("log-level")
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@config_option
@reports_errors
def log_level(level: LogLevel, config_path: Path) -> None:
    """Change which messages the running relay logs, until its end: those of LEVEL and above.

    \b
    Example:
      zonemta log-level debug -c config/zonemta.yaml
    """
    for row in rows_of(config_path, LogLevelRequest(level), relay_only=True):
        echo(f"messages of the level {row['level']} and above are logged")
