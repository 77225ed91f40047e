"""The group ``zonemta shaping``."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import ShapingEndRequest, ShapingRequest
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    ADDRESS,
    EXIT_FAILED,
    POOL,
    PROVIDER,
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
    shaped_text,
    spinner,
)
from zonemta_py.cli.options import event_log, log_options, refuse_backwards, time_ms
from zonemta_py.config.schema import Config
from zonemta_py.config.zones import DestinationTable
from zonemta_py.core import clock
from zonemta_py.core.text import time_left
from zonemta_py.egress.replay import PoolOf, ReplayedChange, RuleUse, ShapingReplay, ShapingSetup
from zonemta_py.egress.sources import names_in_pools


@click.group()
def shaping() -> None:
    """Show what limits sending to each provider, forget what replies have changed, and replay an event log.

    \b
    Example:
      zonemta shaping status -c config/zonemta.yaml
    """


@shaping.command(short_help="Show what is sent to each provider, and what is allowed.")
@config_option
@click.option("--provider", type=PROVIDER, default="", help="Only this provider.")
@click.option("--address", type=ADDRESS, default="", help="Only this address of a pool, or system.")
@json_option
@reports_errors
def status(config_path: Path, provider: str, address: str, as_json: bool) -> None:
    """Print what the running relay sends from each address to each provider, and what is allowed there.

    sessions: in use, of those that are allowed. rates: messages used of each rate. pace: what the controller or a rule allows.
    classes: of the last refusals and deferrals. refused: of the attempts of the last interval those that were refused or deferred
    for reasons of the sender. waiting: destinations that wait for a limit of the provider. The provider * stands for all of them:
    the limits of the address in its pool.

    \b
    Example:
      zonemta shaping status -c config/zonemta.yaml --provider google
    """
    rows = list(rows_of(config_path, ShapingRequest(provider, address), relay_only=True))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        to = f" to '{provider}'" if provider else ""
        echo(f"nothing{to} is limited or under way")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in (
        "provider", "address", "sessions", "rates", "pace", "paused", "classes", "refused", "waiting",
    ):  # fmt: skip
        table.add_column(title, justify="right" if title in ("sessions", "waiting") else "left")
    for row in rows:
        table.add_row(*_cells(row))
    print_table(table)
    for text in dict.fromkeys(_moved(row["provider"], each) for row in rows for each in row["reroutes"]):
        echo(text)


def _moved(provider: str, reroute: dict[str, Any]) -> str:
    left = time_left(reroute["until_ms"])
    return f"mail of the pool {reroute['pool']} to {provider} leaves from {reroute['to']} for {left}"


def _cells(row: dict[str, Any]) -> list[str]:
    sessions = _of(row["sessions"], row["sessions_max"])
    if row["provider_sessions_max"] is not None:
        sessions += f", {_of(row['provider_sessions'], row['provider_sessions_max'])} of all"
    rates = [*row["rates"], *({**each, "rate": f"{each['rate']} new"} for each in row["connect_rates"])]
    pace = _used(row["pace_rates"])
    if row["pace_sessions"] is not None:
        pace = f"{row['pace_sessions']} sessions, {pace}"
    paused = row["paused_until_ms"]
    return [
        row["provider"], row["address"], sessions, _used(rates), f"{pace} ({row['cause']})" if pace else "",
        row["suspended"] or (f"next in {time_left(paused)}" if paused else ""), " ".join(dict.fromkeys(row["last_classes"])),
        f"{row['refused']} of {row['attempts']}", str(row["waiting"]),
    ]  # fmt: skip


def _of(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number}/{most}"


def _used(rates: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['used']} of {each['rate']}" for each in rates)


@shaping.command(short_help="Forget what replies have changed at a provider.")
@config_option
@click.option("--provider", type=PROVIDER, required=True, help="The provider.")
@click.option("--address", type=ADDRESS, help="The address of a pool, or system.")
@click.option("--pool", type=POOL, help="The pool whose mail a rule lets leave from another one.")
@json_option
@reports_errors
def clear(
    config_path: Path, provider: str, address: str | None, pool: str | None, as_json: bool
) -> None:
    """Forget the pace of an address at a provider, and its pause: its limits are those of the configuration again.

    With --pool: the mail of the pool leaves from it again. What is learned from further replies begins anew. Also when the relay
    is down.

    \b
    Examples:
      zonemta shaping clear -c config/zonemta.yaml --provider google --address 203.0.113.7
      zonemta shaping clear -c config/zonemta.yaml --provider google --pool default
    """
    if (address is None) == (pool is None):
        raise click.UsageError("either --address or --pool is needed")
    for row in rows_of(config_path, ShapingEndRequest(provider, address or "", pool or "")):
        what = f"pool {row['pool']}" if "pool" in row else row["address"]
        print_json(row) if as_json else echo(
            f"cleared for {what} at {row['provider']}: {clock.with_times(row['ended'])}"
        )


@shaping.command(short_help="Apply new settings to the replies of an event log.")
@log_options
@click.option(
    "--compare",
    is_flag=True,
    help="Print only what differs from the recorded changes; exit 1 if there is any.",
)
@json_option
@reports_errors
def replay(
    config_path: Path | None, directory: Path | None, from_: datetime | None, to: datetime | None, compare: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print what the shaping of a configuration makes of the replies in an event log, so that new settings can be tried on old mail.

    Providers, rules and the controller are those of the configuration; actions of operators are repeated. With the settings
    of then the changes are those that were recorded, if the log goes back to where no pace was known.

    A table says on how many replies each rule acts: what it holds, bounces or tries again at other times, too.

    \b
    Examples:
      zonemta shaping replay -c new.yaml --events var/events --from 2026-11-17
      zonemta shaping replay -c config/zonemta.yaml --compare
      zonemta shaping replay --events var/events
    """
    refuse_backwards(from_, to)
    read = read_config(config_path) if config_path is not None else None
    directory, config = event_log(read, directory), read or Config()
    found, damage = _replayed(config, directory, time_ms(from_), time_ms(to))
    for text in damage:
        click.echo(f"event log: {text}", err=True)
    missing, extra = found.differences()
    if not compare:
        for change in found.changes:
            _print_change(change, "", as_json=as_json)
    else:
        marked = [*((each, "-") for each in missing), *((each, "+") for each in extra)]
        for change, sign in sorted(marked):
            _print_change(change, sign, as_json=as_json)
    counts = {
        "attempts": found.attempts, "changes": len(found.changes), "recorded": len(found.recorded),
        "missing": len(missing), "extra": len(extra),
    }  # fmt: skip
    uses = found.uses()
    if as_json:
        print_json({**counts, "rules": [each._asdict() for each in uses]})
    else:
        if uses and not compare:
            _print_uses(uses)
        echo(
            f"{counts['attempts']:,} replies, {counts['changes']:,} changes; of {counts['recorded']:,} that were recorded "
            f"{counts['missing']:,} are not among them, and {counts['extra']:,} are new"
        )
    if compare and (missing or extra):
        sys.exit(EXIT_FAILED)


def _print_uses(uses: list[RuleUse]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in RuleUse._fields:
        table.add_column(title, justify="left" if title in ("rule", "action") else "right")
    for use in uses:
        table.add_row(use.rule, use.action, f"{use.replies:,}", f"{use.changes:,}")
    print_table(table)


def _replayed(
    config: Config, directory: Path, from_ms: int | None, to_ms: int | None
) -> tuple[ShapingReplay, list[str]]:
    from zonemta_py.delivery.egress import read_egress
    from zonemta_py.events.log import read_log

    files, damage = read_egress(config), list[str]()
    found = ShapingReplay(
        ShapingSetup(
            config.shaping.controller, files.rules, lambda name: files.table.settings(name).limits,
            _pools(config), names_in_pools(config.pools),
        )
    )  # fmt: skip
    with spinner("reading the event log"):
        since = clock.utc(from_ms).date() if from_ms is not None else None
        for record in read_log(directory, damage, since):
            if (from_ms or 0) <= record["time_ms"] and (to_ms is None or record["time_ms"] < to_ms):
                found.add(record)
        found.end()
    return found, damage


def _pools(config: Config) -> PoolOf:
    tables = {name: DestinationTable(zone) for name, zone in config.zones.items()}

    def pool_of(zone: str, domain: str) -> str:
        table = tables.get(zone) or tables["default"]
        return table.settings(domain).pool

    return pool_of


def _print_change(change: ReplayedChange, sign: str, *, as_json: bool) -> None:
    if as_json:
        print_json({**change.row(), **({"difference": sign} if sign else {})})
        return
    time = f"{clock.utc(change.time_ms):%Y-%m-%d %H:%M:%S}.{change.time_ms % 1000:03d}"
    echo(f"{sign} {time}  {shaped_text(change.row())}".lstrip())
