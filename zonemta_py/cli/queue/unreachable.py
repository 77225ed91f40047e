"""``zonemta queue unreachable``, and its earlier name ``dead-addresses``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import Request, UnreachableClearRequest, UnreachableRequest
from zonemta_py.cli.common import config_option, json_option, print_json, reports_errors
from zonemta_py.cli.queue.access import rows_of


@click.command()
@config_option
@click.option(
    "--clear",
    metavar="IP",
    help="Remove this address, or `all`, from the list: it is tried again at once.",
)
@json_option
@reports_errors
def unreachable(config_path: Path, clear: str | None, as_json: bool) -> None:
    """List addresses whose connections timed out. After two timeouts an address is skipped for a while.

    \b
    Examples:
      zonemta queue unreachable -c config/zonemta.yaml
      zonemta queue unreachable -c config/zonemta.yaml --clear 192.0.2.1
    """
    request: Request = UnreachableRequest() if clear is None else UnreachableClearRequest(clear)
    for row in rows_of(config_path, request, relay_only=clear is not None):
        if as_json:
            print_json(row)
        elif "cleared" in row:
            click.echo(f"{row['cleared']} addresses removed from the list")
        else:
            state = f"skipped for {row['rests_s']} s" if row["rests_s"] else "still tried"
            from_source = f" from {row['source']}" if row["source"] else ""
            at = f"{row['ip']} port {row['port']}" if row["port"] != 25 else row["ip"]
            click.echo(
                f"{at}{from_source}  {row['timeouts']} timeouts in a row, the last {row['last_s']} s ago, {state}"
            )


def _dead_addresses(**values: Any) -> None:
    click.echo("'queue dead-addresses' is deprecated: use 'queue unreachable'", err=True)
    assert unreachable.callback is not None
    unreachable.callback(**values)


dead_addresses = click.Command(
    "dead-addresses", callback=_dead_addresses, params=unreachable.params, hidden=True
)
