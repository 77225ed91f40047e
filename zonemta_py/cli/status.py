"""``zonemta status`` and ``zonemta rates``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import (
    DestinationsRequest,
    LoginRequest,
    RatesRequest,
    StatusRequest,
    WhyRequest,
)
from zonemta_py.cli.common import (
    config_option,
    counted,
    echo,
    json_option,
    print_json,
    print_table,
    reason_text,
    reports_errors,
)
from zonemta_py.cli.queue.change import rows_of
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.core.text import ago
from zonemta_py.egress.paths import Limit

LIMITED_MAX = 10


@click.command()
@config_option
@json_option
@reports_errors
def status(config_path: Path, as_json: bool) -> None:
    """Show how the running relay is: whether it is ready for mail, what waits, what it sends, what is suspended or limited, and warnings.

    The link to the page needs no token, and works once. `--json` prints none.

    \b
    Example:
      zonemta status -c config/zonemta.yaml
    """
    for row in rows_of(config_path, StatusRequest(), relay_only=True):
        if as_json:
            print_json(row)
            continue
        processes = ", ".join(f"{len(pids)} {role}" for role, pids in row["processes"].items() if pids)
        echo(f"relay      zonemta {row['version']} as {row['hostname']}, for {ago(row['since_ms'])}")
        echo(f"processes  {processes}")
        echo(f"listeners  {', '.join(row['listeners']) or 'none'}")
        echo(f"http       {', '.join(row['http']) or 'none'}")
        echo(f"page       {_login(config_path)}")
        echo(f"ready      {'no: ' + '; '.join(row['not_ready']) if row['not_ready'] else 'yes'}")
        echo(f"sessions   {row['sessions_in']} in, {row['sessions_out']} out")
        counts = ", ".join(
            f"{count} {name.replace('_', ' ')}" for name, count in row["queue"].items() if count
        )
        echo(f"queue      {counts or 'empty'}{' (still counting)' if row['counting'] else ''}")
        rates = ", ".join(f"{value:g} {name}" for name, value in row["per_s"].items() if value)
        echo(f"per second {rates or 'nothing'} (last 5 minutes)")
        if row["taken_over"]:
            echo(f"taken over the queues of {', '.join(row['taken_over'])}")
        if row["unreachable"]:
            echo(f"unreachable {counted(row['unreachable'], 'destination')}")
        for each in row["unreachable_destinations"]:
            why = reason_text(each["why"]) if each["why"] else "being tried"
            echo(f"           {each['zone']}/{each['destination']}: {why}")
        for each in _limited(config_path):
            echo(f"limited    {each['zone']}/{each['destination']}: {reason_text(each['why'])}")
        for warning in row["warnings"]:
            echo(f"warning    {warning}")
        if row["suspended_submitters"]:
            echo(f"suspended tenants and users: {', '.join(row['suspended_submitters'])}")
        if names := by_operator(row):
            waiting = counted(row["queue"]["suspended"], "recipient")
            echo(f"suspended by an operator: {names}; suspended by that: {waiting}")
        if row["suspended_mail"]:
            echo(f"suspended mail of {'; '.join(row['suspended_mail'])}")


def by_operator(row: dict[str, Any]) -> str:
    """The zones, providers, addresses and domains that an operator has suspended."""
    return ", ".join(each.replace(":", " ", 1) for each in row["suspended_sending"])


def _limited(config_path: Path) -> Iterator[dict[str, Any]]:
    """Destinations with mail that a limit keeps waiting."""
    request = DestinationsRequest(troubled=True, limit=LIMITED_MAX)
    for row in rows_of(config_path, request, relay_only=True):
        if row["why"] and row["why"]["name"] not in (Limit.UNREACHABLE, Limit.PROBE):
            yield row


def _login(config_path: Path) -> str:
    """A link to the page that works once."""
    try:
        (row,) = rows_of(config_path, LoginRequest(), relay_only=True)
    except LocalError:
        return "none"
    urls = row["urls"] or ["at a Unix socket"]
    return f"{urls[0]} (once, for {row['valid_s'] // 60} minutes)"


@click.command()
@config_option
@click.option(
    "--minutes", type=click.Choice(["1", "5", "60"]), default="5", show_default=True, help="The window."
)
@click.option(
    "--kind",
    type=click.Choice(["zone", "destination", "source", "tenant"]),
    help="Only zones, destinations, source addresses or tenants.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="The most rows of a kind, the busiest first.",
)
@json_option
@reports_errors
def rates(config_path: Path, minutes: str, kind: str | None, limit: int, as_json: bool) -> None:
    """Show what the running relay has attempted lately, by zone, destination, source address and tenant.

    p50 and p95: the time of an attempt in milliseconds, up to which half and 95 % of them took, as the next of 5, 10, 20, 50, 100,
    200, 500 ms, 1, 2, 5, 10, 30 s, 1 and 5 min.

    \b
    Examples:
      zonemta rates -c config/zonemta.yaml --minutes 1
      zonemta rates -c config/zonemta.yaml --kind destination --minutes 60
    """
    rows = list(rows_of(config_path, RatesRequest(int(minutes), kind, limit), relay_only=True))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo(f"nothing was attempted in the last {minutes} min ({clock.utc(clock.now_ms()):%H:%M} UTC)")
        return
    from rich.table import Table

    columns = ("attempts", "delivered", "deferred", "bounced", "expired", "sessions")
    table = Table(box=None, pad_edge=False)
    for title in ("kind", "name", *columns, "delivered/s", "p50 ms", "p95 ms"):
        table.add_column(title, justify="left" if title in ("kind", "name") else "right")
    for row in rows:
        counts = (str(row[name]) for name in columns)
        rate = f"{row['delivered_per_s']:.1f}"
        table.add_row(row["kind"], row["name"], *counts, rate, str(row["p50_ms"]), str(row["p95_ms"]))
    print_table(table)


# ---- ``zonemta why``.


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
