"""The group ``zonemta tenant``."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.admin.requests import (
    SuspendedRequest,
    UsageRequest,
    VerifyRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    TENANT,
    config_option,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.cli.suspend import until_text
from zonemta_py.config.load import to_yaml
from zonemta_py.config.plain import plain_values
from zonemta_py.config.tenants import bases
from zonemta_py.config.values import Seconds
from zonemta_py.core import clock


@click.group()
def tenant() -> None:
    """Show the tenants of a configuration, and verify their domains.

    `zonemta suspend --tenant NAME` suspends one.

    \b
    Example:
      zonemta tenant show acme -c config/zonemta.yaml
    """


def _known(config_path: Path, name: str) -> dict[str, Any]:
    """The settings of a tenant."""
    tenants = read_config(config_path).tenants
    if name not in tenants:
        fail(f"no tenant '{name}'; `zonemta tenant list` shows them", EXIT_USAGE)
    values: dict[str, Any] = plain_values(tenants[name])
    return values


def _suspensions(config_path: Path) -> dict[str, dict[str, Any]]:
    """The suspended tenants; none without a queue."""
    if not read_config(config_path).queue.directory.is_dir():
        return {}
    rows = rows_of(config_path, SuspendedRequest())
    return {row["tenant"]: row for row in rows if "tenant" in row}


def _usage(config_path: Path, name: str) -> list[dict[str, Any]]:
    """Rows of the limits of a tenant, and of what it has used of them."""
    if not read_config(config_path).queue.directory.is_dir():
        return []
    return list(rows_of(config_path, UsageRequest(name)))


def _since(suspension: dict[str, Any] | None) -> str:
    if suspension is None:
        return ""
    since = datetime.fromtimestamp(suspension["since_ms"] / 1000, UTC)
    until = until_text(suspension["until_ms"])
    return f"{since:%Y-%m-%d %H:%M} UTC{until}: {suspension['reason']}"


@tenant.command("list", short_help="List the tenants, and which are suspended.")
@config_option
@json_option
@reports_errors
def list_(config_path: Path, as_json: bool) -> None:
    """Print the tenants with their domains and zones, and which of them are suspended.

    \b
    Example:
      zonemta tenant list -c config/zonemta.yaml
    """
    found = _suspensions(config_path)
    table = Table(
        "tenant", "users", "domains", "zones", "weight", "suspended since", box=None, pad_edge=False
    )
    for name, settings in read_config(config_path).tenants.items():
        if as_json:
            print_json({"tenant": name, **plain_values(settings), "suspended": found.get(name)})
            continue
        zones = ", ".join(settings.zones) if settings.zones is not None else "all"
        domains = ", ".join(settings.domains)
        table.add_row(
            name, str(len(settings.users)), domains, zones, str(settings.weight), _since(found.get(name))
        )
    if not as_json:
        print_table(table)


@tenant.command(short_help="Show the settings of a tenant, and what it has used.")
@click.argument("name", type=TENANT)
@config_option
@json_option
@reports_errors
def show(name: str, config_path: Path, as_json: bool) -> None:
    """Print all settings of the tenant NAME, what it has used of its limits, and whether it is suspended.

    \b
    Example:
      zonemta tenant show acme -c config/zonemta.yaml
    """
    values = _known(config_path, name)
    found, usage = _suspensions(config_path).get(name), _usage(config_path, name)
    if as_json:
        print_json({"tenant": name, **values, "usage": usage, "suspended": found})
        return
    click.echo(to_yaml({name: values}), nl=False)
    if values["verify"] == "dns":
        _print_domains(config_path, name, ask=False)
    for row in usage:
        per = f" in {plain_values(Seconds(row['per_s']), Seconds)}" if row["per_s"] else ""
        echo(f"{row['limit'].replace('_', ' ')}{per}: {row['used']:,} of {row['of']:,}")
    if found is not None:
        echo(f"suspended since {_since(found)}")


@tenant.command(short_help="Look up whether its domains are its own.")
@click.argument("name", type=TENANT)
@config_option
@json_option
@reports_errors
def verify(name: str, config_path: Path, as_json: bool) -> None:
    """Look up whether the domains of the tenant NAME are its own, with `verify: dns`.

    A domain counts when a TXT record of _zonemta.DOMAIN is the name of the tenant. A running relay looks up new domains
    at once, and all of them daily. Exits 1 when one is not verified.

    \b
    Example:
      zonemta tenant verify acme -c config/zonemta.yaml
    """
    if _known(config_path, name)["verify"] != "dns":
        fail(f"tenants.{name}.verify is none: its domains count as they are", EXIT_USAGE)
    if not _print_domains(config_path, name, ask=True, as_json=as_json):
        sys.exit(EXIT_FAILED)


def _print_domains(config_path: Path, name: str, *, ask: bool, as_json: bool = False) -> bool:
    """Print what is known of the domains of a tenant; whether all are verified."""
    if not ask and not read_config(config_path).queue.directory.is_dir():
        return False
    domains = tuple(bases(read_config(config_path).tenants[name].domains))
    rows = list(rows_of(config_path, VerifyRequest(name, domains, ask)))
    for row in rows:
        if as_json:
            print_json(row)
            continue
        state = "verified" if row["verified"] else "not verified"
        when = (
            f", last on {clock.utc(row['verified_ms']):%Y-%m-%d %H:%M} UTC" if row["verified_ms"] else ""
        )
        echo(f'{row["domain"]}: {state}{when} (_zonemta.{row["domain"]} TXT "{name}")')
    return all(row["verified"] for row in rows)
