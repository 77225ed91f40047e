"""The commands of ``zonemta queue`` that only read: summary, list, show, state, body, check, stats."""

import base64
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.admin.requests import (
    BodyRequest,
    CheckRequest,
    ListRequest,
    Row,
    ShowRequest,
    StateRequest,
    StatsRequest,
    SummaryRequest,
)
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    domain_option,
    echo,
    json_option,
    print_json,
    print_table,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.core import clock

COUNTS = ("waiting", "deferred", "held")


@click.command()
@config_option
@json_option
@reports_errors
def summary(config_path: Path, as_json: bool) -> None:
    """Count recipients per zone, with the largest domains.

    \b
    Example:
      zonemta queue summary -c config/zonemta.yaml
    """
    rows = list(rows_of(config_path, SummaryRequest()))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("the queue is empty")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("zone", *COUNTS, "oldest", "next due", "largest domains"):
        table.add_column(title, justify="right" if title in COUNTS else "left")
    for row in rows:
        table.add_row(
            row["zone"],
            *(str(row[count]) for count in COUNTS),
            _ago(row["oldest_ms"]),
            _in(row["next_due_ms"]),
            ", ".join(f"{domain} {count}" for domain, count in row["domains"].items()),
        )
    print_table(table)
    for row in rows:
        for domain, reason in row["resting"].items():
            echo(f"{row['zone']}/{domain} is suspended: {reason}")


@click.command("list")
@config_option
@zone_option
@domain_option
@click.option("--state", type=click.Choice(list(COUNTS)), help="Only recipients in this state.")
@click.option("--tenant", help="Only mail of this tenant.")
@click.option("--user", help="Only mail of this user.")
@click.option("--campaign", help="Only mail with this X-Campaign.")
@click.option("--tag", help="Only mail with this tag among its X-Tags.")
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
            due = "" if row["state"] == "held" else _in(row["due_ms"]) if row["due_ms"] else "now"
            reply = " ".join(str(row[k]) for k in ("code", "status", "reply") if row[k])
            echo(
                f"{row['message']}  {row['zone']:<12} {row['state']:<8} {due:>8}  "
                f"attempts {row['attempts']}  {row['recipient']}  {reply}".rstrip()
            )


@click.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def show(config_path: Path, message: str, as_json: bool) -> None:
    """Show everything about one message except its body.

    \b
    Example:
      zonemta queue show -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, ShowRequest(message)):
        print_json(row) if as_json else _print_message(row)


def _print_message(row: Row) -> None:
    origin = row["origin"]
    accepted = f"{clock.utc(row['created_ms']):%Y-%m-%d %H:%M:%S} UTC ({_ago(row['created_ms'])} ago)"
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
        due = f", due in {_in(recipient['due_ms'])}" if recipient["due_ms"] else ""
        echo(
            f"  <{recipient['recipient']}> {recipient['state']} in {recipient['zone']}, "
            f"attempts {recipient['attempts']}{due}"
        )
        if recipient["text"]:
            echo(f"      {recipient['code'] or ''} {recipient['status']} {recipient['text']}")


@click.command()
@config_option
@click.argument("message")
@json_option
@reports_errors
def state(config_path: Path, message: str, as_json: bool) -> None:
    """Print the state of a message in qmail's terms (S1 to S5) and Kannader's.

    \b
    Example:
      zonemta queue state -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, StateRequest(message)):
        if as_json:
            print_json(row)
            continue
        kannader = f"; {row['kannader']}" if row["kannader"] else ""
        echo(f"{row['qmail']}  {row['meaning']}{kannader}")
        for recipient in row["recipients"]:
            echo(f"  {recipient['index']}  <{recipient['recipient']}> {recipient['kannader']}")


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
@json_option
@reports_errors
def stats(config_path: Path, as_json: bool) -> None:
    """Print the counters of the running relay since its start: fsyncs, transitions, compactions.

    \b
    Example:
      zonemta queue stats -c config/zonemta.yaml
    """
    for row in rows_of(config_path, StatsRequest(), relay_only=True):
        if as_json:
            print_json(row)
            continue
        for name, value in row.items():
            text = ("no", "yes")[value] if isinstance(value, bool) else f"{value:,}"
            echo(f"{name:<12} {text}")


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
