"""``zonemta pipeline plan``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.pipeline.options import Where, named_values, spark_options
from zonemta_py.cli.progress import step_shower
from zonemta_py.cli.submission_options import email_column_option, message_option, per_message_option
from zonemta_py.config.load import parse_config
from zonemta_py.core.errors import ConfigError
from zonemta_py.smtp.address import AddressError, normalise


@click.command()
@click.argument("recipients", metavar="LIST")
@message_option
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
@email_column_option
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The relay's configuration: its routing names the zone of each recipient.",
)
@per_message_option
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
    callback=named_values,
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
    options: dict[str, str],
    where: Where,
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
    from zonemta_py.pipeline.rules.suppression import read_suppression

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
        options=options,
    )
    if "://" not in recipients and not recipients.startswith("jdbc:") and not Path(recipients).exists():
        raise ConfigError(f"{recipients}: no such file")
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
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
