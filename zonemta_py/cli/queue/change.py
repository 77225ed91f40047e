"""``zonemta queue hold``, ``release``, ``delete``, ``bounce`` and ``flush``: one message, or all mail that options select."""

import sys
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.requests import (
    BounceRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    MailRequest,
    ReleaseRequest,
)
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    counted,
    domain_option,
    echo,
    json_option,
    print_json,
    progress_bar,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.options import ADDRESS, label_options
from zonemta_py.core.codec import replace

Command = Callable[..., None]

STATES = ("waiting", "deferred", "held")


def takes_message(command: Command) -> Command:
    """The message of a command: its argument MESSAGE, or its option ``--message``."""

    @wraps(command)
    def wrapper(argument: str | None, option: str | None, **values: Any) -> None:
        if argument and option and argument != option:
            raise click.UsageError("MESSAGE and --message name different messages")
        command(message=argument or option, **values)

    message_option = click.option(
        "--message", "option", metavar="MESSAGE", help="The same as the argument MESSAGE."
    )
    message_argument = click.argument("argument", metavar="[MESSAGE]", required=False)
    return message_argument(message_option(wrapper))


def selects_mail(command: Command) -> Command:
    """MESSAGE and ``--recipient``, or options that select mail."""
    for option in reversed(
        (
            click.option("--recipient", type=ADDRESS, help="Only this recipient of MESSAGE."),
            zone_option,
            domain_option,
            click.option("--state", type=click.Choice(STATES), help="Only recipients in this state."),
            label_options,
            click.option("--dry-run", is_flag=True, help="Only count what is selected."),
        )
    ):
        command = option(command)
    return config_option(takes_message(json_option(command)))


asks_first = click.option("--yes", is_flag=True, help="Do not ask before a change to selected mail.")


@click.command()
@selects_mail
@asks_first
@reports_errors
def delete(config_path: Path, as_json: bool, yes: bool, **selection: Any) -> None:
    """Remove mail without a report: a message, one of its recipients, or all that options select.

    Options are combined: a recipient must match each. What is in a transaction is skipped and counted;
    exits 1 if there was any. Mail that comes in meanwhile is not selected: suspend its campaign, tenant or
    zone first (zonemta suspend).

    \b
    Examples:
      zonemta queue delete -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --recipient ann@example.org
      zonemta queue delete -c config/zonemta.yaml --campaign autumn-sale --dry-run
      zonemta queue delete -c config/zonemta.yaml --campaign autumn-sale --yes
    """
    _change(config_path, DeleteRequest(**selection), "deleted", as_json=as_json, sure=yes)


@click.command()
@selects_mail
@click.option(
    "--reason", default="returned by the operator", show_default=True, help="What the reports say."
)
@asks_first
@reports_errors
def bounce(config_path: Path, as_json: bool, yes: bool, **selection: Any) -> None:
    """Return mail to its senders: a message, one of its recipients, or all that options select.

    It fails, with one report for each message; the sender's NOTIFY is respected. What is in a transaction
    is skipped and counted; exits 1 if there was any.

    \b
    Examples:
      zonemta queue bounce -c config/zonemta.yaml 019a1b2c3d4e000001abcdef --reason "sent by mistake"
      zonemta queue bounce -c config/zonemta.yaml --domain example.org --state deferred --yes
    """
    _change(config_path, BounceRequest(**selection), "bounced", as_json=as_json, sure=yes)


@click.command()
@selects_mail
@reports_errors
def hold(config_path: Path, as_json: bool, **selection: Any) -> None:
    """Keep mail in the queue, unsent, until it is released: a message, or all that options select.

    What is in a transaction is skipped and counted; exits 1 if there was any. To hold what comes in later
    too, use zonemta suspend.

    \b
    Examples:
      zonemta queue hold -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta queue hold -c config/zonemta.yaml --campaign autumn-sale --domain example.org
      zonemta queue hold -c config/zonemta.yaml --sender news@example.com --dry-run
    """
    _change(config_path, HoldRequest(**selection), "held", as_json=as_json)


@click.command()
@selects_mail
@reports_errors
def release(config_path: Path, as_json: bool, **selection: Any) -> None:
    """Release held mail, which is due at once: a message, or all that options select.

    \b
    Examples:
      zonemta queue list -c config/zonemta.yaml --state held
      zonemta queue release -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta queue release -c config/zonemta.yaml --campaign autumn-sale
    """
    _change(config_path, ReleaseRequest(**selection), "released", as_json=as_json)


def _change(
    config_path: Path, request: MailRequest, done: str, *, as_json: bool, sure: bool = True
) -> None:
    """Execute ``request`` and print the sums of its rows; ``done`` names the count of changed recipients."""
    if request.message is None and not request.has_filter:
        raise click.UsageError("name a MESSAGE, or select mail by --zone, --domain, --campaign, …")
    if request.message is not None and (request.has_filter or request.dry_run):
        raise click.UsageError("MESSAGE goes with --recipient only, not with options that select mail")
    if request.message is None and not sure and not request.dry_run:
        _ask(config_path, request, done)
    sums = _sums(config_path, request, done)
    if as_json:
        print_json(sums)
    elif request.dry_run:
        echo(f"{counted(sums['matched'], 'recipient')} selected")
    else:
        skipped = f", {sums['in_flight']} in flight and skipped" if "in_flight" in sums else ""
        echo(f"{counted(sums[done], 'recipient')} {done}{skipped}")
    if sums.get("damaged"):
        echo(f"{sums['damaged']} messages are damaged and skipped; see zonemta queue check")
    if sums.get("in_flight") or sums.get("damaged"):
        sys.exit(EXIT_FAILED)


def _ask(config_path: Path, request: MailRequest, done: str) -> None:
    """Ask whether to change what is selected. Raises Abort for a no, UsageError without a terminal."""
    if not _has_terminal():
        raise click.UsageError("what is selected is changed without a question only with --yes")
    count = _sums(config_path, replace(request, dry_run=True), done)["matched"]
    click.confirm(f"{counted(count, 'recipient')} are to be {done}. Go on?", abort=True, err=True)


def _has_terminal() -> bool:
    return sys.stdin.isatty()


def _sums(config_path: Path, request: MailRequest, done: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    with progress_bar("recipients", None) as advance:
        for row in rows_of(config_path, request):
            sums.update(row)
            advance(row.get(done, 0))
    return sums


@click.command()
@config_option
@zone_option
@domain_option
@takes_message
@json_option
@reports_errors
def flush(
    config_path: Path, zone: str | None, domain: str | None, message: str | None, as_json: bool
) -> None:
    """Make deferred recipients due now, and try unreachable destinations.

    \b
    Examples:
      zonemta queue flush -c config/zonemta.yaml --zone bulk
      zonemta queue flush -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
    """
    for row in rows_of(config_path, FlushRequest(zone, domain, message)):
        if as_json:
            print_json(row)
            continue
        text = f"{_counted(row['woken'], 'deferred recipient')} due now"
        if row["tried"]:
            text += f", {_counted(row['tried'], 'unreachable destination')} tried now"
        echo(text)
        if row["suspended"]:
            what = f"{_counted(row['suspended'], 'recipient')} suspended: an operator has suspended what sends them"
            echo(f"{what}; `zonemta suspend --list`")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"
