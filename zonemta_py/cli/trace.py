"""``zonemta trace``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import TraceRequest
from zonemta_py.cli.common import (
    EXIT_USAGE,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    reports_errors,
)
from zonemta_py.cli.queue.access import following, rows_of
from zonemta_py.core import clock
from zonemta_py.transports.tracing import normal_target

COLORS = {"C": None, "S": "cyan", "": "yellow"}


@click.command()
@click.argument("target", metavar="DOMAIN|ID|IP")
@config_option
@json_option
@reports_errors
def trace(target: str, config_path: Path, as_json: bool) -> None:
    """Print the SMTP dialogues of the running relay as they happen, until interrupted. Exits 1 when the relay stops.

    A DOMAIN: sessions with its servers, and sessions of clients that name an address in it. A message's ID: the transactions
    that send it. An IP address: sessions of that client, with that server, or from that address of the relay.

    C: is what the client says, S: the server. Bodies are shown as their size, what AUTH is given as [secret]. A
    process shows at most 2,000 lines in a second, and five traces run at the same time. Sessions that are open already are shown from their next command on.

    \b
    Examples:
      zonemta trace example.org -c config/zonemta.yaml
      zonemta trace 192.0.2.25 -c config/zonemta.yaml
    """
    try:
        normal_target(target)
    except ValueError as exc:
        fail(str(exc), EXIT_USAGE)
    session = ""
    with following():
        for row in rows_of(config_path, TraceRequest(target), relay_only=True):
            if as_json:
                print_json(row)
            elif "missed" in row:
                echo(f"… {row['missed']} lines were too fast to print")
            else:
                if row["session"] != session:
                    echo(_head(row), bold=True)
                    session = row["session"]
                _print_line(row)


def _head(row: dict[str, Any]) -> str:
    where = "client" if row["side"] == "in" else "server"
    message = f", message {row['message']}" if row["message"] else ""
    return f"-- session {row['session']} with the {where} {row['peer']}{message}"


def _print_line(row: dict[str, Any]) -> None:
    time = f"{clock.utc(row['time_ms']):%H:%M:%S}.{row['time_ms'] % 1000:03d}"
    speaker = f"{row['speaker']}: " if row["speaker"] else "-- "
    echo(f"{time} {speaker}{row['text']}", COLORS[row["speaker"]])
