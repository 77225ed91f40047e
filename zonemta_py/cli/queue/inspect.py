"""``zonemta queue list``, ``show``, ``body``, ``check`` and ``unreachable``."""

import base64
import sys
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import (
    BodyRequest,
    CheckRequest,
    ListRequest,
    Request,
    Row,
    ShowRequest,
    StateRequest,
    UnreachableClearRequest,
    UnreachableRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    domain_option,
    echo,
    json_option,
    print_json,
    reason_text,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.options import STATE, label_options
from zonemta_py.core import clock
from zonemta_py.core.text import ago


@click.command("list")
@config_option
@zone_option
@domain_option
@click.option("--state", type=STATE, help="Only recipients in this state.")
@label_options
@click.option("--limit", type=click.IntRange(1), help="The maximum number of recipients.")
@json_option
@reports_errors
def list_(config_path: Path, as_json: bool, **filters: Any) -> None:
    """List recipients, oldest message first within each zone.

    \b
    Examples:
      zonemta queue list -c config/zonemta.yaml --domain example.org --state deferred
      zonemta queue list -c config/zonemta.yaml --tenant acme --campaign autumn-sale
    """
    for row in rows_of(config_path, ListRequest(**filters)):
        if as_json:
            print_json(row)
        else:
            echo(
                f"{row['message']}  {row['zone']:<12} {row['state']:<11} "
                f"attempts {row['attempts']}  {row['recipient']}  {reason_text(row['why'])}"
            )


@click.command()
@config_option
@click.argument("message")
@click.option(
    "--states", is_flag=True, help="Only its state in qmail's terms (S1 to S5) and Kannader's."
)
@json_option
@reports_errors
def show(config_path: Path, message: str, states: bool, as_json: bool) -> None:
    """Show everything about one message except its body.

    \b
    Examples:
      zonemta queue show -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta queue show -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --states
    """
    for row in rows_of(config_path, StateRequest(message) if states else ShowRequest(message)):
        if as_json:
            print_json(row)
        elif states:
            _print_states(row)
        else:
            _print_message(row)


def _print_states(row: Row) -> None:
    kannader = f"; {row['kannader']}" if row["kannader"] else ""
    echo(f"{row['qmail']}  {row['meaning']}{kannader}")
    for recipient in row["recipients"]:
        echo(f"  {recipient['index']}  <{recipient['recipient']}> {recipient['kannader']}")


def _print_message(row: Row) -> None:
    origin = row["origin"]
    accepted = f"{clock.utc(row['created_ms']):%Y-%m-%d %H:%M:%S} UTC ({ago(row['created_ms'])} ago)"
    source = origin["user"] or origin["client_ip"] or "this relay"
    echo(f"message    {row['message']}")
    echo(f"sender     <{row['sender']}>")
    echo(f"accepted   {accepted}")
    echo(f"from       {source} by {origin['protocol'] or 'report'}")
    for name, value in (("tenant", origin["tenant"]), ("campaign", row["campaign"])):
        if value:
            echo(f"{name:<10} {value}")
    if row["tags"]:
        echo(f"tags       {', '.join(row['tags'])}")
    options = row["options"]
    for name, at_ms in (("not before", options["not_before_ms"]), ("expires", options["expires_ms"])):
        if at_ms:
            echo(f"{name:<10} {clock.utc(at_ms):%Y-%m-%d %H:%M:%S} UTC")
    echo(f"body       {row['body_bytes']} bytes in {row['chunks']} chunks")
    echo("\n" + row["header"].replace("\r\n", "\n"))
    for recipient in row["recipients"]:
        echo(
            f"  <{recipient['recipient']}> {recipient['state']} in {recipient['zone']}, "
            f"attempts {recipient['attempts']}"
        )
        echo(f"      {reason_text(recipient['why'])}")


@click.command()
@config_option
@click.argument("message")
@reports_errors
def body(config_path: Path, message: str) -> None:
    """Print a message as it will be sent: header, empty line, body.

    \b
    Example:
      zonemta queue body -c config/zonemta.yaml 019a1b2c3d4e000001abcdef > message.eml
    """
    for row in rows_of(config_path, BodyRequest(message)):
        sys.stdout.buffer.write(base64.b64decode(row["chunk"]))
    sys.stdout.buffer.flush()


@click.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Verify the queue: markers, chunks, checksums, each recipient in exactly one state.

    Exits 1 when there are problems.

    \b
    Example:
      zonemta queue check -c config/zonemta.yaml
    """
    problems = 0
    for row in rows_of(config_path, CheckRequest()):
        problems = row.get("problems", problems)
        if as_json:
            print_json(row)
        elif "problem" in row:
            echo(row["problem"])
    if not as_json:
        echo(f"{problems} problems" if problems else "no problems found")
    if problems:
        sys.exit(EXIT_FAILED)


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
