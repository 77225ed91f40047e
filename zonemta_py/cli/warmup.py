"""The group ``zonemta warmup``."""

import math
import sys
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.admin.requests import (
    ChangeRequest,
    WarmupContinueRequest,
    WarmupPauseRequest,
    WarmupRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    ADDRESS,
    EXIT_USAGE,
    PROVIDER,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    reports_errors,
)
from zonemta_py.cli.options import FILE
from zonemta_py.config.load import read_text, to_yaml
from zonemta_py.config.warmup import LATEST, WarmupSchedule, entry_of, with_entry
from zonemta_py.core.files import replace_text
from zonemta_py.egress.warmup import plan

address_option = click.option("--address", type=ADDRESS, required=True, help="The address that is new.")
provider_option = click.option(
    "--provider", type=PROVIDER, default="", help="Only the schedule for this provider."
)


@click.group()
def warmup() -> None:
    """Show the warm-up of new addresses, pause it, and plan one.

    \b
    Example:
      zonemta warmup status -c config/zonemta.yaml
    """


@warmup.command(short_help="Show the progress of the warm-up of each address.")
@config_option
@click.option("--address", type=ADDRESS, default="", help="Only this address.")
@json_option
@reports_errors
def status(config_path: Path, address: str, as_json: bool) -> None:
    """Print the progress of the warm-up of each address: its day, what is allowed today (UTC), and what was sent.

    late days: by how many the schedule is behind, because a provider refused too much or an operator paused it. Also when
    the relay is down.

    \b
    Example:
      zonemta warmup status -c config/zonemta.yaml
    """
    _print(list(rows_of(config_path, WarmupRequest(address))), as_json=as_json)


@warmup.command(short_help="Stay at the number of today.")
@config_option
@address_option
@provider_option
@json_option
@reports_errors
def pause(config_path: Path, address: str, provider: str, as_json: bool) -> None:
    """Stay at the number of today, day after day, until `zonemta warmup continue`.

    \b
    Example:
      zonemta warmup pause -c config/zonemta.yaml --address 203.0.113.7
    """
    _change(config_path, WarmupPauseRequest(address, provider), as_json=as_json)


@warmup.command("continue")
@config_option
@address_option
@provider_option
@json_option
@reports_errors
def continue_(config_path: Path, address: str, provider: str, as_json: bool) -> None:
    """Go on with the schedule where it was paused.

    \b
    Example:
      zonemta warmup continue -c config/zonemta.yaml --address 203.0.113.7
    """
    _change(config_path, WarmupContinueRequest(address, provider), as_json=as_json)


def _change(config_path: Path, request: ChangeRequest, *, as_json: bool) -> None:
    _print(list(rows_of(config_path, request)), as_json=as_json)


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("no address has a warm-up; see warmup.file")
        return
    table = Table(box=None, pad_edge=False)
    for title in ("address", "provider", "day", "allowed", "sent", "left", "late days", ""):
        table.add_column(title, justify="left" if title in ("address", "provider", "") else "right")
    for row in rows:
        table.add_row(
            row["address"], row["provider"] or "all", _day(row), _count(row["allowed"]),
            _count(row["sent"]), _count(row["left"]), str(row["late_days"]),
            "paused" if row["paused"] else "",
        )  # fmt: skip
    print_table(table)


def _day(row: dict[str, Any]) -> str:
    if row["step"] < 1:
        return f"begins {row['begins']}"
    return f"{row['step']} of {row['steps']}" if row["step"] <= row["steps"] else "over"


def _count(number: int | None) -> str:
    return "any" if number is None else f"{number:,}"


@warmup.command("plan")
@address_option
@click.option(
    "--start",
    "begins",
    metavar="DAY",
    type=click.DateTime(["%Y-%m-%d"]),
    required=True,
    help="The first day (UTC), such as 2026-12-01.",
)
@click.option("--target", type=click.IntRange(1), required=True, help="Recipients a day at the end.")
@click.option(
    "--first",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Recipients on the first day.",
)
@click.option(
    "--growth",
    type=click.FloatRange(1.05, 10),
    default=1.6,
    show_default=True,
    help="By how much the number grows from day to day.",
)
@click.option("--provider", type=PROVIDER, default="", help="Only for mail to this provider.")
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Add the schedule to this file, which is created if need be, instead of printing it.",
)
@click.option("--force", is_flag=True, help="Replace the schedule for the same mail in the file.")
@json_option
@reports_errors
def plan_(
    address: str, begins: datetime, target: int, first: int, growth: float, provider: str,
    output: Path | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a schedule: an entry for the file that `warmup.file` names. The table of the days goes to standard error.

    With --json the days go to standard output instead of the entry. With -o the other entries of the file stay. One for the same address and provider is only replaced with --force; without
    it the command exits 2.

    \b
    Examples:
      zonemta warmup plan --address 203.0.113.7 --start 2026-12-01 --target 100000 -o warmup.yaml
      zonemta warmup plan --address 203.0.113.7 --start 2026-12-01 --target 20000 --provider google
    """
    try:
        normal = str(ip_address(address))
    except ValueError as exc:
        fail(f"--address: {exc}", EXIT_USAGE)
    if math.isnan(growth):  # in every range
        fail("--growth: found nan, expected a number", EXIT_USAGE)
    if first > target:
        fail(f"--first {first} is more than --target {target}", EXIT_USAGE)
    day = begins.replace(tzinfo=UTC).date()
    if day > LATEST:
        fail(f"--start: found {day}, expected {LATEST} or earlier", EXIT_USAGE)
    made = plan(target, day, normal, provider, first, growth)
    if output is None:
        if not as_json:
            click.echo(to_yaml([entry_of(made)]), nl=False)
    else:
        before = read_text(output) if output.exists() else ""
        try:
            replace_text(output, with_entry(before, output, made, replace=force))
        except OSError as exc:
            fail(f"{output}: {exc.strerror or exc}", EXIT_USAGE)
    _print_days(made, as_json=as_json)


def _print_days(schedule: WarmupSchedule, *, as_json: bool) -> None:
    from rich.console import Console

    table, total = Table(box=None, pad_edge=False), 0
    for title in ("day", "date", "recipients", "sum"):
        table.add_column(title, justify="left" if title == "date" else "right")
    for number, (day, allowed) in enumerate(schedule.days(), 1):
        total += allowed
        if as_json:
            print_json({"day": number, "date": day.isoformat(), "recipients": allowed, "sum": total})
        table.add_row(str(number), day.isoformat(), f"{allowed:,}", f"{total:,}")
    if as_json:
        return
    Console(file=sys.stderr, highlight=False, markup=False).print(table)
