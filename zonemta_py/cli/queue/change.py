"""``zonemta queue flush`` and ``zonemta queue repair``."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import (
    BounceRequest,
    ChangeRequest,
    DeleteRequest,
    FlushRequest,
    HoldRequest,
    MailRequest,
    ReleaseRequest,
    Request,
    ResumeRequest,
    Row,
)
from zonemta_py.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    TENANT,
    config_option,
    counted,
    domain_option,
    echo,
    fail,
    json_option,
    print_json,
    progress_bar,
    read_config,
    reports_errors,
    zone_option,
)
from zonemta_py.cli.options import ADDRESS, DOMAIN, EXISTING_FILE, FILE, SENDER
from zonemta_py.config.load import queue_directory
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import ConfigError
from zonemta_py.core.text import no_such
from zonemta_py.events.log import gaps, read_log
from zonemta_py.events.segment_reading import open_segments
from zonemta_py.open_queue import open_queue
from zonemta_py.queue.format import keys
from zonemta_py.queue.outbox import Exporter
from zonemta_py.queue.upkeep.transfer import export_queue, import_queue
from zonemta_py.relay.runner import keep_copy, repair
from zonemta_py.storage.interface import Access
from zonemta_py.storage.open import open_store

# ---- Executes an operation: through the control socket of a running relay, or on the queue when none runs.


def rows_of(config_path: Path, request: Request, *, relay_only: bool = False) -> Iterator[Row]:
    """The rows of the answer to ``request``. ``relay_only``: a running relay is required.

    A file with a mistake is no obstacle where a relay runs: it is an incident in which the operator makes them.
    Raises ConfigError, QueueLocked, LocalError.
    """
    try:
        config = read_config(config_path)
    except ConfigError as exc:
        yield from _despite(exc, config_path, request)
        return
    directory = config.queue.directory
    if not directory.is_dir():
        fail(f"{directory}: there is no queue yet; the first `zonemta serve` creates it")
    zone = getattr(request, "zone", None)
    if zone and zone not in config.zones and not isinstance(request, ResumeRequest):
        fail(no_such("zone", zone, config.zones), EXIT_USAGE)
    try:
        yield from ask(directory, request)
    except ConnectionRefusedError:
        if relay_only:
            fail(f"{directory}: no relay is running; `zonemta serve` starts one")
        import asyncio

        yield from asyncio.run(_offline(config, request))


def _despite(mistake: ConfigError, config_path: Path, request: Request) -> Iterator[Row]:
    """The rows, from the relay that runs on the queue that the file names. Raises ``mistake`` when none does."""
    directory = queue_directory(config_path)
    if directory is None:
        raise mistake
    rows = ask(directory, request)
    try:
        first = next(rows, None)
    except OSError as exc:
        raise mistake from exc
    click.echo(f"warning: {mistake}\nthe running relay has an earlier configuration", err=True)
    if first is not None:
        yield first
        yield from rows


@contextmanager
def following() -> Iterator[None]:
    """For rows that end only when the user interrupts them, which exits 0. The end of the relay exits 1."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)
    fail("the relay has stopped: what comes next is not shown; run this again when it is ready")


async def _offline(config: Config, request: Request) -> list[Row]:
    """The rows, from the queue itself. What a command to a running relay does not need is imported here."""
    from zonemta_py.admin.reasons import RunningRelay
    from zonemta_py.admin.registry import Operations, run_operation
    from zonemta_py.delivery.egress_operator import StoppedEgress
    from zonemta_py.open_queue import open_queue

    access = Access.EXISTING if isinstance(request, ChangeRequest) else Access.READ
    queue = open_queue(config, access=access)
    if access is Access.EXISTING:
        queue.commits.start()
    relay = RunningRelay(
        events=config.events.directory,
        tenants=lambda: config.tenants,
        egress=StoppedEgress(queue, config),
    )
    try:
        return [row async for row in run_operation(Operations(queue, relay), request)]
    finally:
        await queue.close()


# ---- ``zonemta queue hold``, ``release``, ``delete`` and ``bounce``: one message, or all that options select.

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


def label_options(command: Command) -> Command:
    """The options that select mail by what its submitter said of it."""
    for option in reversed(
        (
            click.option("--tenant", type=TENANT, help="Only mail of this tenant."),
            click.option("--user", help="Only mail of this user."),
            click.option(
                "--sender",
                type=SENDER,
                help="Only mail with this envelope sender; <> is the null sender.",
            ),
            click.option(
                "--sender-domain",
                type=DOMAIN,
                help="Only mail whose envelope sender is in this domain.",
            ),
            click.option("--campaign", help="Only mail with this X-Campaign."),
            click.option("--tag", help="Only mail with this tag among its X-Tags."),
        )
    ):
        command = option(command)
    return command


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


# ---- change

SHOWN = 50  # lines of a repair that are printed without --json


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
    """Make deferred recipients due now, and try suspended destinations.

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
            text += f", {_counted(row['tried'], 'suspended destination')} tried now"
        echo(text)
        if row["stopped"]:
            what = f"{_counted(row['stopped'], 'recipient')} stopped: an operator has suspended what sends them"
            echo(f"{what}; `zonemta suspend --list`")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{' is' if number == 1 else 's are'}"


@click.command("repair")
@config_option
@json_option
@reports_errors
def repair_(config_path: Path, as_json: bool) -> None:
    """Repair a damaged queue. The relay must be down; a copy of the queue is kept.

    The database files are repaired, every message is read and verified, and recipients and markers are
    compared with the event log. What LevelDB's log has of the last mail is read with its checksums before: a flipped bit
    is set right, and a damaged part is left out, kept in the directory `lost`, and named with its recipients. Exits 1 when
    accepted recipients are lost, and lists them, or when a part was damaged.

    \b
    Example:
      zonemta queue repair -c config/zonemta.yaml
    """
    config = read_config(config_path)
    copy = keep_copy(config)
    click.echo(f"a copy is kept in {copy}", err=True)
    damage = list(gaps(config.events.directory, {}))
    rows = asyncio.run(repair(config, read_log(config.events.directory, damage)))
    for text in damage:
        click.echo(f"event log: {text}", err=True)
    for number, row in enumerate(rows):
        if as_json:
            print_json(row)
        elif number < SHOWN or row["what"] in ("lost", "damaged"):
            recipient = f" to {row['recipient']}" if row["recipient"] else ""
            message = f" {row['message']}{recipient}:" if row["message"] else ""
            echo(f"{row['what']}:{message} {row['reason']}")
    counts = Counter(row["what"] for row in rows)
    if as_json:
        print_json(
            {
                "copy": str(copy),
                **{what: counts[what] for what in ("restored", "removed", "damaged", "lost")},
            }
        )
    else:
        places = f", {counts['damaged']} places damaged" if counts["damaged"] else ""
        echo(
            f"{counts['restored']} restored, {counts['removed']} removed, {counts['lost']} lost{places}"
        )
    if counts["lost"] or counts["damaged"]:
        sys.exit(EXIT_FAILED)


# ---- ``zonemta queue export`` and ``import``.


@click.command("export")
@config_option
@click.argument("file", type=FILE)
@json_option
@reports_errors
def export_(config_path: Path, file: Path, as_json: bool) -> None:
    """Write the whole queue to FILE, to move it to another store or machine.

    The relay must be down. Run an interrupted export again to continue it. The event log of a relay that was
    killed is finished first; apart from that the queue does not change: start a relay on only one of the
    two, or every recipient gets the mail twice.

    \b
    Example:
      zonemta queue export -c config/zonemta.yaml queue.export
    """
    config = read_config(config_path)
    store = open_store(config.queue, access=Access.READ)
    try:
        if open_segments(config.events.directory, (store.get(keys.META_NODE) or b"").decode()):
            store.close()
            asyncio.run(_finish_log(config))
            store = open_store(config.queue, access=Access.READ)
        with progress_bar("export", None) as advance:
            records = export_queue(store, file, advance)
    finally:
        store.close()
    _print_count(records, file, "to", as_json=as_json)


@click.command("import")
@config_option
@click.argument("file", type=EXISTING_FILE)
@json_option
@reports_errors
def import_(config_path: Path, file: Path, as_json: bool) -> None:
    """Read an exported queue from FILE into the empty store of this configuration.

    The relay must be down. Run an interrupted import again to continue it; until it is complete no relay
    opens the queue. Ids, ages, attempts, submission keys, and events that are not yet in the event log,
    are imported too.

    \b
    Example:
      zonemta queue import -c new.yaml queue.export
    """
    store = open_store(read_config(config_path).queue)
    try:
        with progress_bar("import", None) as advance:
            records = import_queue(store, file, advance)
    finally:
        store.close()
    _print_count(records, file, "from", as_json=as_json)


async def _finish_log(config: Config) -> None:
    """Export the events of a killed relay and seal its log: the imported queue has another node and cannot.

    A log that cannot be written is logged, and its events stay in the queue and in the export.
    """
    queue = open_queue(config, access=Access.EXISTING)
    queue.commits.start()
    try:
        exporter = Exporter(queue, config.events)
        await exporter.start()
        await exporter.close()
    finally:
        await queue.close()


def _print_count(records: int, file: Path, preposition: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"records": records, "file": str(file)})
    else:
        click.echo(f"{records:,} records {preposition} {file}")
