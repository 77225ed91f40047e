"""``zonemta queue …``: the operator's tools, by the control socket, or on the database when the relay is down."""

import asyncio
import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from zonemta_py.admin.control import ask
from zonemta_py.admin.operations import Operations
from zonemta_py.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    config_option,
    fail,
    json_option,
    print_json,
    read_config,
    reports_errors,
)
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.delivery.open_queue import open_queue

Rows = Iterator[dict[str, Any]]

zone_option = click.option("--zone", help="Only this zone.")
domain_option = click.option("--domain", help="Only this recipient domain.")


@click.group()
def queue() -> None:
    """Look into the queue and change it, while the relay runs or not.

    \b
    Examples:
      zonemta queue summary -c config/zonemta.yaml
      zonemta queue list -c config/zonemta.yaml --zone bulk --state deferred
      zonemta queue flush -c config/zonemta.yaml --domain example.org
    """


def rows_of(config_path: Path, command: str, **arguments: Any) -> Rows:
    """The answer to ``command`` from the relay, or from its database when it is down."""
    config = read_config(config_path)
    directory = config.queue.directory
    if not directory.is_dir():
        fail(f"{directory}: there is no queue yet; it is made by the first `zonemta serve`")
    zone = arguments.get("zone")
    if zone is not None and zone not in config.zones:
        fail(f"no zone '{zone}'; zones: {', '.join(sorted(config.zones))}", EXIT_USAGE)
    wanted = {name: value for name, value in arguments.items() if value is not None}
    try:
        yield from ask(directory, command, wanted)
    except ConnectionRefusedError:
        yield from asyncio.run(_offline(config, command, wanted))


async def _offline(config: Config, command: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    queue = open_queue(config)
    queue.commits.start()
    try:
        return [row async for row in Operations(queue, {}).run(command, arguments)]
    finally:
        await queue.close()


@queue.command()
@config_option
@json_option
@reports_errors
def summary(config_path: Path, as_json: bool) -> None:
    """Count recipients per zone, with the largest domains.

    \b
    Example:
      zonemta queue summary -c config/zonemta.yaml
    """
    rows = list(rows_of(config_path, "summary"))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        click.echo("the queue is empty")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("zone", "waiting", "deferred", "held", "oldest", "next due", "largest domains"):
        table.add_column(title, justify="right" if title in ("waiting", "deferred", "held") else "left")
    for row in rows:
        table.add_row(
            row["zone"],
            str(row["waiting"]),
            str(row["deferred"]),
            str(row["held"]),
            _ago(row["oldest_ms"]),
            _in(row["next_due_ms"]),
            ", ".join(f"{domain} {count}" for domain, count in row["domains"].items()),
        )
    _console().print(table)
    for row in rows:
        for domain, why in row["resting"].items():
            click.echo(f"{row['zone']}/{domain} rests: {why}")


@queue.command("list")
@config_option
@zone_option
@domain_option
@click.option(
    "--state", type=click.Choice(["waiting", "deferred", "held"]), help="Only recipients in this state."
)
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
@reports_errors
def list_(
    config_path: Path,
    zone: str | None,
    domain: str | None,
    state: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List recipients, oldest message first within each zone.

    \b
    Example:
      zonemta queue list -c config/zonemta.yaml --domain example.org --state deferred
    """
    rows = rows_of(config_path, "list", zone=zone, domain=domain, state=state, limit=limit)
    for row in rows:
        if as_json:
            print_json(row)
        else:
            when = {"waiting": "now", "held": ""}.get(row["state"]) or _in(row["due_ms"])
            reply = " ".join(str(row[k]) for k in ("code", "status", "reply") if row[k])
            click.echo(
                f"{row['message']}  {row['zone']:<12} {row['state']:<8} {when:>8}  "
                f"attempts {row['attempts']}  {row['recipient']}  {reply}".rstrip()
            )


@queue.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def show(config_path: Path, message: str, as_json: bool) -> None:
    """Show everything about one message but its body.

    \b
    Example:
      zonemta queue show -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, "show", message=message):
        if as_json:
            print_json(row)
            continue
        click.echo(f"message    {row['message']}")
        click.echo(f"sender     <{row['sender']}>")
        click.echo(
            f"accepted   {clock.utc(row['created_ms']):%Y-%m-%d %H:%M:%S} UTC ({_ago(row['created_ms'])} ago)"
        )
        origin = row["origin"]
        click.echo(
            f"from       {origin['user'] or origin['client_ip'] or 'this relay'} by {origin['protocol'] or 'report'}"
        )
        click.echo(f"body       {row['body_bytes']} bytes in {row['chunks']} chunks")
        click.echo("\n" + row["header"].replace("\r\n", "\n"))
        for recipient in row["recipients"]:
            due = f", due in {_in(recipient['due_ms'])}" if recipient["due_ms"] else ""
            click.echo(
                f"  <{recipient['recipient']}> {recipient['state']} in {recipient['zone']}, "
                f"attempts {recipient['attempts']}{due}"
            )
            if recipient["text"]:
                code = recipient["code"] or ""
                click.echo(f"      {code} {recipient['status']} {recipient['text']}")


@queue.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def state(config_path: Path, message: str, as_json: bool) -> None:
    """Say in which state a message is, in qmail's words (S1 to S5) and Kannader's.

    \b
    Example:
      zonemta queue state -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, "state", message=message):
        if as_json:
            print_json(row)
            continue
        click.echo(
            f"{row['qmail']}  {row['meaning']}" + (f"; {row['kannader']}" if row["kannader"] else "")
        )
        for recipient in row["recipients"]:
            click.echo(f"  {recipient['index']}  <{recipient['recipient']}> {recipient['kannader']}")


@queue.command()
@config_option
@click.argument("message")
@reports_errors
def body(config_path: Path, message: str) -> None:
    """Print a message as it will be sent: header, empty line, body.

    \b
    Example:
      zonemta queue body -c config/zonemta.yaml 019a1b2c3d4e000001abcdef > message.eml
    """
    for row in rows_of(config_path, "body", message=message):
        sys.stdout.buffer.write(base64.b64decode(row["chunk"]))
    sys.stdout.buffer.flush()


@queue.command()
@config_option
@json_option
@reports_errors
def check(config_path: Path, as_json: bool) -> None:
    """Verify the queue. Exits 1 on problems.

    Markers, chunks, checksums, every recipient in exactly one place.

    \b
    Example:
      zonemta queue check -c config/zonemta.yaml
    """
    problems = 0
    for row in rows_of(config_path, "check"):
        problems = row.get("problems", problems)
        if as_json:
            print_json(row)
        elif "problem" in row:
            click.echo(row["problem"])
    if not as_json:
        click.echo("the queue is sound" if not problems else f"{problems} problems")
    if problems:
        sys.exit(EXIT_FAILED)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _ago(ms: int | None) -> str:
    return _span((clock.now_ms() - ms) / 1000) if ms else ""


def _in(ms: int | None) -> str:
    if not ms:
        return ""
    left_s = (ms - clock.now_ms()) / 1000
    return _span(left_s) if left_s > 0 else "now"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{max(0, seconds):.0f}s"
