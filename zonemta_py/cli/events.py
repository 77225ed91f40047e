"""``zonemta history`` and ``zonemta tail``."""

import sys
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import HistoryRequest, TailRequest
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    domain_option,
    echo,
    fail,
    json_option,
    print_json,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.names import TENANT
from zonemta_py.cli.progress import spinner
from zonemta_py.cli.queue.access import following, rows_of
from zonemta_py.cli.reason import shaped_text
from zonemta_py.config.units import duration
from zonemta_py.core import clock
from zonemta_py.events.schema import EVENT_NAMES

_SHOWN = (
    "zone", "attempt", "code", "status", "class", "mx", "mx_ip", "source_ip", "duration_ms", "reason", "due_ms", "report",
    "expires_ms", "new_message", "user", "client_ip", "protocol", "size_bytes", "message_id", "campaign", "tenant",
    "same_key_as", "ignored",
)  # fmt: skip


@click.command()
@click.argument("key")
@config_option
@click.option("--since", default="30d", show_default=True, help="Nothing older, such as 2h or 7d.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="The most events; the last ones are shown.",
)
@json_option
@reports_errors
def history(key: str, config_path: Path, since: str, limit: int, as_json: bool) -> None:
    """Show what has happened to a message, or to mail for an address: also when it was delivered long ago.

    KEY is a queue id, a recipient address, or a Message-ID. Reads the event log and
    what the relay has not yet written there. Exits 1 when there is no event, and when a part of the log that was searched is damaged or
    missing.

    \b
    Examples:
      zonemta history -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta history -c config/zonemta.yaml ann@example.org --since 2d
      zonemta history -c config/zonemta.yaml '<20261121.1@news.example.com>'
    """
    try:
        since_ms = clock.now_ms() - int(duration(since) * 1000)
    except ValueError as exc:
        raise click.BadParameter(f"found '{since}', expected {exc}", param_hint="--since") from exc
    with spinner("reading the event log"):
        rows = list(rows_of(config_path, HistoryRequest(key, since_ms, limit)))
    problems = [row["problem"] for row in rows if "problem" in row]
    for row in rows:
        if as_json:
            print_json(row)
        elif "problem" not in row:
            print_event(row)
    for text in problems:
        click.echo(f"event log: {text}", err=True)
    if len(problems) == len(rows):
        fail(f"no event of {key} since {clock.utc(since_ms):%Y-%m-%d %H:%M} UTC")
    if problems:
        sys.exit(EXIT_FAILED)


@click.command()
@config_option
@click.option("--event", type=click.Choice(EVENT_NAMES), help="Only these events.")
@zone_option
@domain_option
@click.option("--tenant", type=TENANT, help="Only mail of this tenant.")
@click.option("--message", help="Only this message.")
@json_option
@reports_errors
def tail(config_path: Path, as_json: bool, **filters: Any) -> None:
    """Print the events of the running relay as they are written, until interrupted. Exits 1 when the relay stops.

    \b
    Examples:
      zonemta tail -c config/zonemta.yaml --event bounced
      zonemta tail -c config/zonemta.yaml --domain example.org --json
    """
    with following():
        for row in rows_of(config_path, TailRequest(**filters), relay_only=True):
            if "missed" in row and not as_json:
                echo(f"… {row['missed']} events were too fast to print")
            else:
                print_json(row) if as_json else print_event(row)


def print_event(row: dict[str, Any]) -> None:
    """One line, or two with a reply."""
    who = row.get("recipient") or row.get("sender", "")
    recipients, addresses = row.get("recipients"), row.get("addresses", [])
    if isinstance(recipients, list) and recipients and isinstance(recipients[0], dict):
        addresses = [each["recipient"] for each in recipients]
    if addresses:
        others = f" and {len(addresses) - 3} others" if len(addresses) > 3 else ""
        who += f" → {', '.join(addresses[:3])}{others}"
    time = f"{clock.utc(row['time_ms']):%Y-%m-%d %H:%M:%S}.{row['time_ms'] % 1000:03d}"
    if row["event"] == "shaped":
        echo(f"{time}  {row['event']:<9} {shaped_text(row)}")
        return
    echo(f"{time}  {row['event']:<9} {row.get('message', '')}  {who}")
    parts = [f"{name}={_value(name, row[name])}" for name in _SHOWN if row.get(name)]
    if parts:
        echo("    " + " ".join(parts))
    if row.get("reply"):
        echo(f"    {row['reply']}")


def _value(name: str, value: Any) -> str:
    if name.endswith("_ms") and name != "duration_ms":
        return f"{clock.utc(value):%Y-%m-%dT%H:%M:%SZ}"
    return ", ".join(value) if name == "ignored" else str(value)
