"""``zonemta why``."""

from pathlib import Path

import click

from zonemta_py.admin.requests import WhyRequest
from zonemta_py.cli.common import config_option, echo, json_option, print_json, reports_errors
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.cli.reason import reason_text


@click.command()
@config_option
@click.argument("message")
@click.argument("recipient", required=False)
@json_option
@reports_errors
def why(config_path: Path, message: str, recipient: str | None, as_json: bool) -> None:
    """Explain why the recipients of a message are still waiting: for what, from when, and until when.

    One line for each recipient; at its end, in brackets, the key of the configuration that sets the limit.

    \b
    Examples:
      zonemta why -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta why -c config/zonemta.yaml 019a1b2c3d4e000001abcdef ann@example.org
    """
    for row in rows_of(config_path, WhyRequest(message, recipient)):
        if as_json:
            print_json(row)
        else:
            echo(f"<{row['recipient']}> {row['state'].replace('_', ' ')} in {row['zone']}")
            echo(f"  {reason_text(row['why'])}")
