"""``zonemta suspend`` and ``zonemta resume``, for every kind: a zone, provider, address, domain, tenant, user or campaign.

The mail of what sends (zone, provider, address, domain) is accepted and waits in the state *suspended*. The mail of a submitter (tenant,
user) is not accepted, and what is queued is *held*. A part of the mail (a campaign, or what a tenant sends to a provider) is accepted
and *held*.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import ResumeRequest, SuspendedRequest, SuspendRequest
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    ADDRESS,
    EXIT_USAGE,
    PROVIDER,
    TENANT,
    ZONE,
    config_option,
    counted,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.cli.options import POSITIVE_DURATION
from zonemta_py.config.load import queue_directory
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import no_such

KINDS = ("zone", "provider", "address", "domain", "tenant", "user", "campaign")

Command = Callable[..., None]


def selectors(command: Command) -> Command:
    """The options that say what is suspended or resumed."""
    for option in (
        click.option("--campaign", multiple=True, metavar="NAME", help="The mail of a campaign; with --zone, --provider or --domain only that."),
        click.option("--user", multiple=True, metavar="NAME", help="A user who logs in: the mail is not accepted, and held."),
        click.option("--tenant", multiple=True, type=TENANT, help="A tenant: its mail is not accepted, and held; with a second option only that part of it."),
        click.option("--domain", multiple=True, metavar="NAME", help="The mail for a domain of recipients."),
        click.option("--address", multiple=True, type=ADDRESS, help="An address of a pool, or system: the one that the system chooses."),
        click.option("--provider", multiple=True, type=PROVIDER, help="A mailbox provider, as `zonemta queue summary --by destination` names it."),
        click.option("--zone", multiple=True, type=ZONE, help="A sending zone."),
    ):  # fmt: skip
        command = option(command)
    return command


def _chosen(named: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """The names that were given, by kind. Raises UsageError."""
    for kind, names in named.items():
        if len(names) > 1 or "" in names:
            raise click.UsageError(f"--{kind}: one name is expected, once")
    found = {kind: named[kind][0] for kind in KINDS if named[kind]}
    of_mail = found.keys() & {"tenant", "campaign"}
    places = found.keys() - of_mail
    if not found or len(places) > 1 or (of_mail and places & {"address", "user"}):
        raise click.UsageError(
            "name what to suspend or resume: a --zone, --provider, --address, --domain or --user; or a --tenant, a --campaign or "
            "both, and then also a --zone, --provider or --domain, for that part of their mail only"
        )
    return found


def _check_user(config_path: Path, name: str) -> None:
    """Exit with a usage error for a user that no file has: a suspension that stops nothing is worse than an error."""
    try:
        config = read_config(config_path)
    except ConfigError:  # a running relay has an earlier one
        click.echo(
            f"warning: the configuration cannot be read, so it is not known if there is a user '{name}'",
            err=True,
        )
        return
    from zonemta_py.intake.users import read_entries  # hashes are not for the start of every command

    files = {each.auth.users_file for each in config.listeners}
    known = {entry.name for path in files if path is not None for entry in read_entries(path)}
    if name not in known:
        fail(no_such("user", name, known), EXIT_USAGE)


@click.command()
@config_option
@selectors
@click.option("--for", "for_s", type=POSITIVE_DURATION, help="How long, such as 30m or 2h.")
@click.option(
    "--reason", default="an operator", show_default=True, help="Why, for those who look later."
)
@click.option("--list", "lists", is_flag=True, help="List what is suspended, and do nothing.")
@json_option
@reports_errors
def suspend(
    config_path: Path,
    for_s: float | None,
    reason: str,
    lists: bool,
    as_json: bool,
    **named: tuple[str, ...],
) -> None:
    """Send nothing of a zone, provider, address, domain, tenant, user or campaign, until it is resumed.

    Its mail is accepted and waits; messages in a transaction are finished. It applies at once, and over restarts, also when the
    relay is down. Mail that goes to a smarthost is of the provider smarthost, whatever its domain.

    The mail of a tenant or a user is not accepted (454 4.7.0), and what is queued is held when it is its turn. With --provider,
    --domain or --zone only that part of the mail of a tenant or a campaign is held, and released at the end.

    \b
    Examples:
      zonemta suspend -c config/zonemta.yaml --provider google --for 2h --reason "blocked, ticket 4711"
      zonemta suspend -c config/zonemta.yaml --campaign june --provider google --reason "wrong list"
      zonemta suspend -c config/zonemta.yaml --tenant acme --reason "invoice 4711"
      zonemta suspend -c config/zonemta.yaml --user newsletter --reason "a stolen password"
      zonemta suspend -c config/zonemta.yaml --list
    """
    if lists:
        if any(named.values()) or for_s:
            raise click.UsageError("--list has no other options but --json")
        _list(config_path, as_json=as_json)
        return
    chosen = _chosen(named)
    if "user" in chosen:
        _check_user(config_path, chosen["user"])
    until_ms = clock.now_ms() + round(for_s * 1000) if for_s else 0
    request = SuspendRequest(reason=reason, until_ms=until_ms, **chosen)
    for row in rows_of(config_path, request):
        if as_json:
            print_json(row)
            continue
        if row.get("warning"):
            click.echo(f"warning: {row['warning']}", err=True)
        kind = f"{next(iter(chosen))} " if len(chosen) == 1 and "campaign" not in chosen else ""
        echo(f"suspended {kind}{row['suspended']}{until_text(until_ms)}")
        if row.get("not_in"):
            echo(
                f"not in {', '.join(row['not_in'])}, where mail goes to a smarthost whatever its domain"
            )


def until_text(until_ms: int) -> str:
    """The end of a suspension as it follows what is suspended; empty for none."""
    return f" until {clock.utc(until_ms):%Y-%m-%d %H:%M:%S} UTC" if until_ms else ""


def _list(config_path: Path, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    directory = queue_directory(config_path)
    if directory is None or directory.is_dir():
        rows = list(rows_of(config_path, SuspendedRequest()))
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not rows:
        echo("nothing is suspended")
        return
    from rich.table import Table

    table = Table("what", "name", "since (UTC)", "until (UTC)", "reason", box=None, pad_edge=False)
    for row in rows:
        kind, name = next(iter(row.items()))
        if kind == "mail":
            name = ", ".join(" ".join(each) for each in name.items())
        until = f"{clock.utc(row['until_ms']):%Y-%m-%d %H:%M}" if row["until_ms"] else "resumed"
        table.add_row(kind, name, f"{clock.utc(row['since_ms']):%Y-%m-%d %H:%M}", until, row["reason"])
    print_table(table)


@click.command()
@config_option
@selectors
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All zones, providers, addresses and domains; tenants, users and campaigns stay suspended.",
)
@json_option
@reports_errors
def resume(config_path: Path, everything: bool, as_json: bool, **named: tuple[str, ...]) -> None:
    """End what `zonemta suspend` began: the mail leaves at once, as its limits allow.

    Of a tenant or a user all held mail is released, also what an operator held. Interrupted, the command can be repeated.

    \b
    Examples:
      zonemta resume -c config/zonemta.yaml --provider google
      zonemta resume -c config/zonemta.yaml --all
    """
    if everything and any(named.values()):
        raise click.UsageError("--all and a name exclude each other")
    request = ResumeRequest(all=True) if everything else ResumeRequest(**_chosen(named))
    resumed = 0
    for row in rows_of(config_path, request):
        if as_json:
            print_json(row)
        elif "resumed" in row:
            resumed += 1
            released = f", released {counted(row['released'], 'recipient')}" if row["released"] else ""
            echo(f"resumed {row['resumed']}{released}")
    if as_json:
        return
    if not resumed:
        echo("nothing was suspended")
    if everything and (left := sum(1 for _ in rows_of(config_path, SuspendedRequest()))):
        echo(
            f"suspended tenants, users and campaigns stay so ({left}); `zonemta suspend --list` shows them"
        )
