"""``zonemta pipeline …``: the Spark jobs. pyspark is imported only when one of them runs."""

import socket
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from zonemta_py.cli.common import EXIT_FAILED, fail, json_option, print_json, read_config, reports_errors
from zonemta_py.cli.progress import step_shower
from zonemta_py.cli.sink import HostPortParam
from zonemta_py.cli.submit import read_credentials
from zonemta_py.config.load import parse_config
from zonemta_py.config.units import HostPort, duration
from zonemta_py.errors import ConfigError, LocalError
from zonemta_py.smtp.address import AddressError, normalise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

P = ParamSpec("P")
R = TypeVar("R")

EXTRA = "the pipeline needs Spark: pip install 'zonemta_py[pipeline]', and Java 17 or newer"


@click.group()
def pipeline() -> None:
    """Prepare lists, submit them, and understand what became of them, on Spark.

    Every job runs on this machine by default, and unchanged on a cluster with --master.

    \b
    Plan:       zonemta pipeline plan list.csv --message letter.eml --from news@example.com \\
                    --campaign june --output plans/june
    """


def spark_options(command: Callable[P, R]) -> Callable[P, R]:
    """Where a job runs, and with how much memory."""
    for option in (
        click.option(
            "--heap", default="2g", show_default=True, help="Memory of the driver's Java, such as 4g."
        ),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Where the job runs: local[*], local[4], spark://host:7077, …",
        ),
    ):
        command = option(command)

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            import pyarrow  # noqa: F401 - the same extra brings it
            import pyspark  # noqa: F401
        except ImportError:
            fail(EXTRA)
        return command(*args, **kwargs)

    return wrapper


@contextmanager
def session(master: str, heap: str) -> "Iterator[SparkSession]":
    """The session of a job, ended with it."""
    from zonemta_py.pipeline.session import open_session

    spark = open_session(master, heap)
    try:
        yield spark
    finally:
        spark.stop()


@pipeline.command()
@click.argument("recipients", metavar="LIST")
@click.option(
    "--message",
    "message_path",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    required=True,
    help="The message, header and body; {{column}} is replaced from the list.",
)
@click.option("--from", "sender", required=True, help="The envelope sender.")
@click.option(
    "--campaign", required=True, help="Its name: with the recipients it makes the submission keys."
)
@click.option(
    "--suppress",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    multiple=True,
    help="Addresses and domains that get nothing, one a line; may be given more than once.",
)
@click.option("--output", required=True, help="The folder of the plan; it must not exist.")
@click.option(
    "--email-column", help="The column with the address.  [default: email, address or recipient]"
)
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The relay's configuration: its routing names the zone of each recipient.",
)
@click.option(
    "--recipients-per-message",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="How many share one message; 1 when the message has merge fields.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="Parts of the work that can be sent at the same time.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of Spark's reader: sep=;, encoding=ISO-8859-1, dbtable=people, …",
)
@spark_options
@json_option
@reports_errors
def plan(
    recipients: str,
    message_path: Path,
    sender: str,
    campaign: str,
    suppress: tuple[Path, ...],
    output: str,
    email_column: str | None,
    config_path: Path | None,
    recipients_per_message: int,
    slots: int,
    options: tuple[str, ...],
    master: str,
    heap: str,
    as_json: bool,
) -> None:
    """Decide who gets the message, and freeze it.

    LIST is a .csv, .jsonl or .parquet file or folder, or jdbc:… with --option dbtable=…. Each row is
    planned, or left out as rejected, duplicate or suppressed, with a reason; the sums are checked. Nothing is sent.

    \b
    Example:
      zonemta pipeline plan list.csv --message letter.eml --from news@example.com \\
          --campaign june --suppress bounced.txt --output plans/june
    """
    from zonemta_py.pipeline.jobs.plan import Request, make_plan
    from zonemta_py.pipeline.suppression import read_suppression

    try:
        address = normalise(sender) if sender else ""
    except AddressError as exc:
        raise ConfigError(f"--from '{sender}': {exc}") from exc
    suppression = read_suppression(iter(suppress))
    request = Request(
        place=recipients,
        output=output,
        campaign=campaign,
        sender=address,
        message=message_path.read_bytes(),
        config=read_config(config_path) if config_path else parse_config("{}", Path("zonemta.yaml")),
        suppression=suppression,
        email_column=email_column,
        per_envelope=recipients_per_message,
        slots=slots,
        options=_reader_options(options),
    )
    if "://" not in recipients and not recipients.startswith("jdbc:") and not Path(recipients).exists():
        raise ConfigError(f"{recipients}: no such file")
    with step_shower() as step:
        step("starting Spark")
        with session(master, heap) as spark:
            manifest = make_plan(spark, request, step)
    row: dict[str, Any] = {name: getattr(manifest, name) for name in manifest.__dataclass_fields__}
    if as_json:
        print_json({**row, "bad_suppression_lines": suppression.bad})
        return
    click.echo(f"{manifest.input:>12,} rows in the list")
    for name in ("planned", "rejected", "duplicate", "suppressed"):
        click.echo(f"{row[name]:>12,} {name}")
    click.echo(f"{manifest.envelopes:>12,} messages, in {output}")
    for line in suppression.shown:
        click.secho(f"not used: {line}", fg="yellow", err=True)
    if suppression.bad > len(suppression.shown):
        click.echo(f"… and {suppression.bad - len(suppression.shown)} more lines", err=True)


def send_options(command: Callable[P, R]) -> Callable[P, R]:
    """How to submit."""
    for option in (
        click.option(
            "--failover",
            is_flag=True,
            help="Let another relay take what one that is away for 10 s should have: some may get it twice.",
        ),
        click.option(
            "--patience",
            default="1h",
            show_default=True,
            help="How long one message is tried, such as 10m.",
        ),
        click.option(
            "--tls",
            type=click.Choice(["off", "opportunistic", "required"]),
            default="opportunistic",
            show_default=True,
        ),
        click.option(
            "--password-file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Its first line is the password.",
        ),
        click.option("--user", help="Authenticate as this user."),
        click.option(
            "--sessions",
            type=click.IntRange(1, 500),
            default=8,
            show_default=True,
            help="Sessions with each relay, per task.",
        ),
        click.option(
            "--relay",
            "relays",
            type=HostPortParam(),
            multiple=True,
            required=True,
            help="Where to submit; several share the work, each message always with the same.",
        ),
    ):
        command = option(command)
    return command


@pipeline.command()
@click.argument("plan_path", metavar="PLAN")
@send_options
@spark_options
@json_option
@reports_errors
def send(**options: Any) -> None:
    """Submit a plan.

    Each recipient gets a row in PLAN/ledger. A task, a job or a relay may die at any moment: run it
    again, and what the ledger lacks is sent under the same submission key, which the relay knows. Exits 0 when every
    recipient was accepted, 1 when some were not.

    \b
    Example:
      zonemta pipeline send plans/june --relay 10.0.0.1:2525 --relay 10.0.0.2:2525
    """
    _send(resuming=False, **options)


@pipeline.command()
@click.argument("plan_path", metavar="PLAN")
@send_options
@spark_options
@json_option
@reports_errors
def resume(**options: Any) -> None:
    """Go on with a plan that was sent in part.

    As ``send``, for a plan that has a ledger already: what it lacks, and what was deferred, is sent.
    """
    _send(resuming=True, **options)


def _send(
    *,
    resuming: bool,
    plan_path: str,
    relays: tuple[HostPort, ...],
    sessions: int,
    user: str | None,
    password_file: Path | None,
    tls: str,
    patience: str,
    failover: bool,
    master: str,
    heap: str,
    as_json: bool,
) -> None:
    from zonemta_py.pipeline.jobs.plan import read_manifest, read_message
    from zonemta_py.pipeline.jobs.send import read_ledger, send_plan
    from zonemta_py.pipeline.submission import Manners

    try:
        patience_s = duration(patience)
    except ValueError as exc:
        raise ConfigError(f"--patience '{patience}': expected {exc}") from exc
    credentials = read_credentials(user, password_file)
    with step_shower() as step:
        step("starting Spark")
        with session(master, heap) as spark:
            manifest = read_manifest(spark, plan_path)
            if resuming and read_ledger(spark, plan_path) is None:
                raise LocalError(f"{plan_path}: nothing was sent yet; begin with: zonemta pipeline send")
            manners = Manners(
                sender=manifest.sender,
                message=read_message(spark, plan_path),
                relays=tuple(map(str, relays)),
                sessions=sessions,
                tls=tls,
                credentials=credentials,
                ehlo=socket.getfqdn(),
                patience_s=patience_s,
                failover=failover,
            )
            sums = send_plan(spark, plan_path, manners, step)
    row = {name: getattr(sums, name) for name in sums.__dataclass_fields__}
    if as_json:
        print_json(row)
    else:
        for name, count in row.items():
            click.echo(f"{count:>12,} {name}")
    if not sums.complete:
        sys.exit(EXIT_FAILED)


@pipeline.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--plan", "plans", multiple=True, help="Tell its campaign apart; may be given more than once."
)
@click.option("--output", required=True, help="The folder of the report; it must not exist.")
@spark_options
@json_option
@reports_errors
def report(
    events: str, plans: tuple[str, ...], output: str, master: str, heap: str, as_json: bool
) -> None:
    """How delivery went: rates, times, replies.

    EVENTS is the relay's event log, the folder in events.directory. Writes Parquet tables and report.html, a page
    that needs nothing else.

    \b
    Example:
      zonemta pipeline report events --plan plans/june --output reports/june
    """
    from zonemta_py.pipeline.jobs.report import Request, make_report

    with step_shower() as step:
        step("starting Spark")
        with session(master, heap) as spark:
            sums = make_report(spark, Request(events, plans, output), step)
    if as_json:
        print_json(sums)
        return
    for name in ("delivered", "deferred", "bounced", "expired"):
        click.echo(f"{sums[name]:>12,} {name}")
    click.echo(f"{output}/report.html")


@pipeline.command()
@click.argument("plan_path", metavar="PLAN")
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output", help="Also write every recipient with its outcome into this folder, as Parquet."
)
@spark_options
@json_option
@reports_errors
def reconcile(
    plan_path: str, events: str, output: str | None, master: str, heap: str, as_json: bool
) -> None:
    """The one outcome of every recipient of a plan.

    Matches the plan, its ledger and the relay's events. Whoever has no end yet is waiting at the relay,
    refused, deferred or unsent. The sums are checked against the plan.

    \b
    Example:
      zonemta pipeline reconcile plans/june events
    """
    from zonemta_py.pipeline.jobs.reconcile import reconcile as run

    with step_shower() as step:
        step("starting Spark")
        with session(master, heap) as spark:
            counts = run(spark, plan_path, events, output, step)
    if as_json:
        print_json(counts)
        return
    for name, count in counts.items():
        click.echo(f"{count:>12,} {name}")


@pipeline.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file."
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=180,
    show_default=True,
    help="Older bounces are forgiven.",
)
@click.option(
    "--times",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="So many bounces are needed.",
)
@spark_options
@json_option
@reports_errors
def suppress(
    events: str, output: Path, days: int, times: int, master: str, heap: str, as_json: bool
) -> None:
    """Who should get nothing more: addresses that bounced hard.

    Writes a file for ``zonemta pipeline plan --suppress``. An address that was delivered to after it bounced is not in it.

    \b
    Example:
      zonemta pipeline suppress events --output bounced.txt
    """
    from zonemta_py.pipeline.jobs.suppress import Request, make_suppression

    with step_shower() as step:
        step("starting Spark")
        with session(master, heap) as spark:
            count = make_suppression(spark, Request(events, output, days, times), step)
    if as_json:
        print_json({"entries": count})
    else:
        click.echo(f"{count:>12,} addresses, in {output}")


def _reader_options(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"--option '{text}': expected NAME=VALUE")
        found[name] = value
    return found
