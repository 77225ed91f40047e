"""``zonemta pipeline dsn`` and ``suppress``."""

from dataclasses import asdict
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.pipeline.spark import SparkOptions, overwrite_option, spark_options


@click.command()
@click.argument("mail", metavar="MAIL...", nargs=-1, required=True)
@click.option(
    "--plan",
    "plans",
    metavar="PLAN",
    multiple=True,
    help="Match reports to the ledger of this plan; repeatable.",
)
@click.option(
    "--sender",
    "senders",
    metavar="ADDRESS",
    multiple=True,
    help="Another envelope sender of yours whose variable form (VERP) names the recipient; repeatable.",
)
@click.option(
    "--output",
    metavar="DIRECTORY|table:NAME",
    required=True,
    help="The directory of the reports, also on a file system of Spark (s3a://…), or a table of a catalog.",
)
@overwrite_option
@spark_options
@json_option
@reports_errors
def dsn(*, spark: SparkOptions, as_json: bool, **options: Any) -> None:
    """Read bounces and complaints that came by mail.

    MAIL is an mbox file, a tree of maildirs, or a table of raw messages (Parquet or JSON lines with the column
    octets, or table:NAME of a catalog). Delivery status reports (RFC 3464) and feedback reports (RFC 5965) are
    matched to the ledgers of plans, by envelope id, by variable sender, or by address.

    \b
    Example:
      zonemta pipeline dsn /var/mail/bounces --plan plans/june --output reports/june-mail
    """
    from zonemta_py.pipeline.jobs.dsn import DsnRequest, read_reports

    with spark.job() as (session, progress):
        counts = read_reports(session, DsnRequest(**options), progress)
    if as_json:
        print_json(asdict(counts))
        return
    click.echo(f"{counts.messages:>12,} messages")
    click.echo(f"{counts.no_report:>12,} are not reports")
    if counts.unreadable:
        click.echo(f"{counts.unreadable:>12,} cannot be read")
    for kind, count in sorted(counts.kinds.items()):
        click.echo(f"{count:>12,} recipients {kind}")
    for method, count in sorted(counts.matched.items()):
        click.echo(f"{count:>12,} {method if method == 'not matched' else f'matched by {method}'}")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output",
    metavar="FILE",
    required=True,
    help="The suppression file to write, also on a file system of Spark (s3a://…).",
)
@click.option(
    "--reports",
    metavar="DIRECTORY|table:NAME",
    multiple=True,
    help="The output of zonemta pipeline dsn: complaints, and bounces after delivery; repeatable.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=180,
    show_default=True,
    help="Ignore bounces that are older.",
)
@click.option(
    "--times",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="The number of bounces from which an address is listed.",
)
@click.option(
    "--complaint-days",
    type=click.IntRange(1, 36500),
    default=3650,
    show_default=True,
    help="Ignore complaints that are older.",
)
@spark_options
@json_option
@reports_errors
def suppress(*, spark: SparkOptions, as_json: bool, events: str, **options: Any) -> None:
    """List the addresses that should get no more mail: hard bounces and complaints.

    Writes a file for ``zonemta pipeline plan --suppress``; each line has the last day on which it applies. An
    address to which mail was delivered after its bounce is not listed; one with a complaint always is.

    \b
    Example:
      zonemta pipeline suppress events --reports reports/june-mail --output bounced.txt
    """
    from zonemta_py.pipeline.jobs.suppress import SuppressRequest, make_suppression
    from zonemta_py.pipeline.spark.event_log import damage_counts

    with spark.job(events) as (session, progress):
        request = SuppressRequest(log=spark.log, **options)
        count = make_suppression(session, request, progress)
    if as_json:
        print_json({"entries": count, **damage_counts(spark.log)})
    else:
        click.echo(f"{count:>12,} addresses, in {request.output}")
