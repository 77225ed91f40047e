"""``zonemta pipeline send``."""

import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from zonemta_py.cli.common import EXIT_FAILED, json_option, print_json, reports_errors
from zonemta_py.cli.options import (
    DURATION,
    HOST_PORT,
    password_option,
    read_credentials,
    tls_option,
    user_option,
)
from zonemta_py.cli.pipeline.common import SparkOptions, spark_options
from zonemta_py.config.endpoints import HostPort

P = ParamSpec("P")
R = TypeVar("R")

CONNECTIONS_MAX = 500


def submit_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options of ``send``."""
    command = spark_options(json_option(reports_errors(command)))
    for option in (
        click.option(
            "--failover",
            is_flag=True,
            help="Submit to another relay what a relay should get that is unreachable for 10 s: "
            "some recipients may get the message twice.",
        ),
        click.option(
            "--timeout",
            "patience_s",
            type=DURATION,
            default="1h",
            show_default=True,
            help="How long to wait for an unreachable relay, and to retry deferred recipients, such as 10m.",
        ),
        click.option(
            "--allow-repeats",
            is_flag=True,
            help="With plans made --once-per campaign: leave out the recipients that got another plan, and go on.",
        ),
        tls_option,
        password_option,
        user_option,
        click.option(
            "--connections",
            type=click.IntRange(1, CONNECTIONS_MAX),
            default=8,
            show_default=True,
            help="Connections of each task to each relay.",
        ),
        click.option(
            "--relay",
            "relays",
            type=HOST_PORT,
            multiple=True,
            required=True,
            help="The relay to submit to; repeatable: each message always goes to the same relay.",
        ),
        click.argument("plan_path", metavar="PLAN"),
    ):
        command = option(command)
    return command


@click.command()
@submit_options
def send(**options: Any) -> None:
    """Submit a plan.

    Each recipient gets a row in PLAN/ledger. When a task, the job or a relay dies, run the command again: it
    submits what the ledger lacks, under the same submission keys, so that the relay recognises repeats. Exits 0 when
    every recipient was accepted, 1 when some were not.

    \b
    Example:
      zonemta pipeline send plans/june --relay 10.0.0.1:2525 --relay 10.0.0.2:2525
    """
    _send(**options)


def _send(
    *,
    plan_path: str,
    allow_repeats: bool,
    spark: SparkOptions,
    as_json: bool,
    **options: Any,
) -> None:
    from zonemta_py.pipeline.plan.request import read_manifest, read_message
    from zonemta_py.pipeline.send.job import key_warnings, send_plan
    from zonemta_py.pipeline.send.submission import SubmitOptions

    values = _submit_values(**options)
    with spark.job() as (session, progress):
        manifest = read_manifest(session, plan_path)
        message = read_message(session, plan_path)
        submit = SubmitOptions(sender=manifest.sender, message=message, **values)
        for warning in key_warnings(session, plan_path, submit):
            click.secho(f"warning: {warning}", fg="yellow", err=True)
        counts = send_plan(session, plan_path, submit, progress, allow_repeats=allow_repeats)
    if as_json:
        print_json(asdict(counts))
    else:
        for name, count in asdict(counts).items():
            click.echo(f"{count:>12,} {name}")
    if not counts.complete:
        sys.exit(EXIT_FAILED)


def _submit_values(
    *,
    relays: tuple[HostPort, ...],
    connections: int,
    user: str | None,
    password_file: Path | None,
    **options: Any,
) -> dict[str, Any]:
    """Fields of ``SubmitOptions`` from the options of the command. Raises ConfigError."""
    return {
        "relays": tuple(map(str, relays)),
        "connections": connections,
        "credentials": read_credentials(user, password_file),
        "ehlo": socket.getfqdn(),
        **options,
    }
