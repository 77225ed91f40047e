"""``zonemta status`` and ``zonemta why``: how the running relay is, and what a message waits for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import (
    DestinationsRequest,
    LoginRequest,
    StatsRequest,
    StatusRequest,
    WhyRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    config_option,
    counted,
    echo,
    json_option,
    print_json,
    reason_text,
    reports_errors,
)
from zonemta_py.core.errors import LocalError
from zonemta_py.core.text import ago
from zonemta_py.egress.paths import Limit

LIMITED_MAX = 10

Row = dict[str, Any]


@click.command()
@config_option
@json_option
@reports_errors
def status(config_path: Path, as_json: bool) -> None:
    """Show how the running relay is: ready or not, what waits, what it sends, what is suspended or limited, and warnings.

    The link to the page needs no token, and works once. `--json` prints none. disk: the counters of the store since the
    start of the relay (`/metrics` has them over time).

    \b
    Example:
      zonemta status -c config/zonemta.yaml
    """
    (row,) = rows_of(config_path, StatusRequest(), relay_only=True)
    (store,) = rows_of(config_path, StatsRequest(), relay_only=True)
    if as_json:
        print_json({**row, "store": store})
        return
    _print_relay(row, _login(config_path))
    _print_queue(row, store)
    for each in row["unreachable_destinations"]:
        why = reason_text(each["why"]) if each["why"] else "being tried"
        echo(f"           {each['zone']}/{each['destination']}: {why}")
    for each in _limited(config_path):
        echo(f"limited    {each['zone']}/{each['destination']}: {reason_text(each['why'])}")
    for warning in row["warnings"]:
        echo(f"warning    {warning}")
    _print_suspended(row)


def _print_relay(row: Row, page: str) -> None:
    processes = ", ".join(f"{len(pids)} {role}" for role, pids in row["processes"].items() if pids)
    echo(f"relay      zonemta {row['version']} as {row['hostname']}, for {ago(row['since_ms'])}")
    echo(f"processes  {processes}")
    echo(f"listeners  {', '.join(row['listeners']) or 'none'}")
    echo(f"http       {', '.join(row['http']) or 'none'}")
    echo(f"page       {page}")
    echo(f"ready      {'no: ' + '; '.join(row['not_ready']) if row['not_ready'] else 'yes'}")
    echo(f"sessions   {row['sessions_in']} in, {row['sessions_out']} out")


def _print_queue(row: Row, store: Row) -> None:
    counts = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in row["queue"].items() if count
    )
    echo(f"queue      {counts or 'empty'}{' (still counting)' if row['counting'] else ''}")
    rates = ", ".join(f"{value:g} {name}" for name, value in row["per_s"].items() if value)
    echo(f"per second {rates or 'nothing'} (last 5 minutes)")
    numbers = (f"{store[name]:,} {name}" for name in ("fsyncs", "transitions", "compactions"))
    states = ["cannot be written" * (not store["writable"]), "being scanned" * bool(store["scanning"])]
    echo(f"disk       {', '.join([*numbers, *filter(None, states)])}")
    if row["taken_over"]:
        echo(f"taken over the queues of {', '.join(row['taken_over'])}")
    if row["unreachable"]:
        echo(f"unreachable {counted(row['unreachable'], 'destination')}")


def _print_suspended(row: Row) -> None:
    if row["suspended_submitters"]:
        echo(f"suspended tenants and users: {', '.join(row['suspended_submitters'])}")
    if names := by_operator(row):
        waiting = counted(row["queue"]["suspended"], "recipient")
        echo(f"suspended by an operator: {names}; suspended by that: {waiting}")
    if row["suspended_mail"]:
        echo(f"suspended mail of {'; '.join(row['suspended_mail'])}")


def by_operator(row: Row) -> str:
    """The zones, providers, addresses and domains that an operator has suspended."""
    return ", ".join(each.replace(":", " ", 1) for each in row["suspended_sending"])


def _limited(config_path: Path) -> Iterator[Row]:
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
