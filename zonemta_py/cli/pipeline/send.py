"""``zonemta pipeline send`` and ``resume``."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from zonemta_py.cli.common import EXIT_FAILED, json_option, print_json, reports_errors
from zonemta_py.cli.parameters import DURATION, HOST_PORT
from zonemta_py.cli.pipeline.options import Where, spark_options
from zonemta_py.cli.progress import step_shower
from zonemta_py.cli.submission_options import password_option, read_credentials, tls_option, user_option
from zonemta_py.config.units import HostPort
from zonemta_py.core.errors import LocalError

P = ParamSpec("P")
R = TypeVar("R")


def sends(command: Callable[P, R]) -> Callable[P, R]:
    """What ``send`` and ``resume`` share: a plan, how to submit it, where the job runs."""
    command = spark_options(json_option(reports_errors(command)))
    for option in (
        click.option(
            "--failover",
            is_flag=True,
            help="Let another relay take what one that is away for 10 s should have: some may get it twice.",
        ),
        click.option(
            "--patience",
            "patience_s",
            type=DURATION,
            default="1h",
            show_default=True,
            help="How long one message is tried, such as 10m.",
        ),
        tls_option,
        password_option,
        user_option,
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
            type=HOST_PORT,
            multiple=True,
            required=True,
            help="Where to submit; several share the work, each message always with the same.",
        ),
        click.argument("plan_path", metavar="PLAN"),
    ):
        command = option(command)
    return command


@click.command()
@sends
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


@click.command()
@sends
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
    patience_s: float,
    failover: bool,
    where: Where,
    as_json: bool,
) -> None:
    from zonemta_py.pipeline.jobs.plan import read_manifest, read_message
    from zonemta_py.pipeline.jobs.send import read_ledger, send_plan
    from zonemta_py.pipeline.submission import Manners

    credentials = read_credentials(user, password_file)
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
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
