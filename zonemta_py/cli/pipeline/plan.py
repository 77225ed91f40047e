"""``zonemta pipeline plan``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.options import (
    EXISTING_FILE,
    email_column_option,
    message_option,
    per_message_option,
)
from zonemta_py.cli.pipeline.spark import SparkOptions, named_values, spark_options
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.smtp.address import AddressError, normalise

if TYPE_CHECKING:
    from zonemta_py.pipeline.jobs.plan import PlanManifest, PlanRequest
    from zonemta_py.pipeline.rules.suppression import SuppressionList


@click.command()
@click.argument("source", metavar="LIST")
@message_option
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="The envelope sender.")
@click.option(
    "--campaign",
    metavar="NAME",
    required=True,
    help="The name of the campaign, for reports and --once-per.",
)
@click.option(
    "--once-per",
    type=click.Choice(["plan", "campaign"]),
    default="plan",
    show_default=True,
    help="campaign: a recipient that got another plan of this campaign does not get the message again, within "
    "the relay's submission_key.window; each recipient gets a message of its own.",
)
@click.option(
    "--suppress",
    "suppression_paths",
    type=EXISTING_FILE,
    multiple=True,
    help="Leave out the addresses and domains in this file, CSV or one on each line; repeatable.",
)
@click.option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    help="The directory of the plan. What a run that was killed left there is replaced.",
)
@click.option("--overwrite", is_flag=True, help="Replace a plan that was not sent yet.")
@email_column_option
@click.option(
    "-c",
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="The configuration of the relay: its routing determines the zone of each recipient.",
)
@per_message_option
@click.option(
    "--slots",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="Parts of the plan that can be sent at the same time.",
)
@click.option(
    "--case-sensitive",
    is_flag=True,
    help="Addresses that differ only in upper and lower case are different recipients.",
)
@click.option(
    "--option",
    "reader_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="An option of Spark's reader: sep=;, encoding=ISO-8859-1, dbtable=people, …; repeatable.",
)
@spark_options
@json_option
@reports_errors
def plan(*, spark: SparkOptions, as_json: bool, **options: Any) -> None:
    """Decide which recipients get the message, and store the plan.

    LIST is a .csv, .tsv, .jsonl, .parquet or .orc file, a directory of such files, table:NAME, or jdbc:… with
    --option dbtable=…. Each row is
    planned, or left out as rejected, duplicate or suppressed, with a reason; the sums are checked. Nothing is sent.

    \b
    Example:
      zonemta pipeline plan list.csv --message letter.eml --from news@example.com \\
          --campaign june --suppress bounced.txt --output plans/june
    """
    from zonemta_py.pipeline.jobs.plan import make_plan

    request = _request(**options)
    with spark.job() as (session, progress):
        manifest = make_plan(session, request, progress)
    if as_json:
        print_json({**asdict(manifest), "bad_suppression_lines": request.suppression.bad})
        return
    _print(manifest, request.output)
    _print_bad_lines(request.suppression)


def _request(
    *,
    source: str,
    sender: str,
    message_path: Path,
    config_path: Path | None,
    suppression_paths: tuple[Path, ...],
    **options: Any,
) -> "PlanRequest":
    """The request from the options of the command. Raises ConfigError and LocalError."""
    from zonemta_py.pipeline.jobs.plan import PlanRequest
    from zonemta_py.pipeline.rules.suppression import read_suppression

    try:
        sender = normalise(sender) if sender else ""
    except AddressError as exc:
        raise ConfigError(f"--from '{sender}': {exc}") from exc
    suppression = read_suppression(suppression_paths)
    config = read_config(config_path) if config_path else parse_config("{}", Path("zonemta.yaml"))
    message = message_path.read_bytes()
    if "://" not in source and not source.startswith(("jdbc:", "table:")) and not Path(source).exists():
        raise ConfigError(f"{source}: no such file")
    return PlanRequest(
        source=source, sender=sender, message=message, config=config, suppression=suppression, **options
    )


def _print(manifest: "PlanManifest", output: str) -> None:
    click.echo(f"{manifest.input:>12,} rows in the list")
    for name in ("planned", "rejected", "duplicate", "suppressed"):
        click.echo(f"{getattr(manifest, name):>12,} {name}")
    click.echo(f"{manifest.envelopes:>12,} messages, in {output}")


def _print_bad_lines(suppression: "SuppressionList") -> None:
    for line in suppression.bad_lines:
        click.secho(f"ignored: {line}", fg="yellow", err=True)
    more = suppression.bad - len(suppression.bad_lines)
    if more > 0:
        click.echo(f"… and {more} more lines", err=True)
