"""``zonemta pipeline dsn`` and ``suppress``."""

from pathlib import Path

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.pipeline.options import Where, spark_options
from zonemta_py.cli.progress import step_shower


@click.command()
@click.argument("places", metavar="MAIL...", nargs=-1, required=True)
@click.option("--plan", "plans", multiple=True, help="Match to its ledger; may be given more than once.")
@click.option(
    "--sender",
    "senders",
    multiple=True,
    help="One more envelope sender of yours, whose variable form (VERP) names the recipient.",
)
@click.option("--output", required=True, help="The folder of the table; it must not exist.")
@spark_options
@json_option
@reports_errors
def dsn(
    places: tuple[str, ...],
    plans: tuple[str, ...],
    senders: tuple[str, ...],
    output: str,
    where: Where,
    as_json: bool,
) -> None:
    """Read reports that came back by mail: bounces and complaints.

    MAIL is an mbox file, a tree of maildirs, or a table of raw messages (Parquet or JSON lines with the column
    octets). Delivery status reports (RFC 3464) and feedback reports (RFC 5965) are matched to the ledgers of plans, by
    envelope id, by variable sender, or by address.

    \b
    Example:
      zonemta pipeline dsn /var/mail/bounces --plan plans/june --output reports/june-mail
    """
    from zonemta_py.pipeline.jobs.dsn import Request, read_reports

    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            found = read_reports(spark, Request(places, plans, output, senders), step)
    if as_json:
        print_json({name: getattr(found, name) for name in found.__dataclass_fields__})
        return
    click.echo(f"{found.messages:>12,} messages")
    click.echo(f"{found.no_report:>12,} are no reports")
    if found.unreadable:
        click.echo(f"{found.unreadable:>12,} cannot be read")
    for kind, count in sorted(found.kinds.items()):
        click.echo(f"{count:>12,} recipients {kind}")
    for way, count in sorted(found.matched.items()):
        click.echo(f"{count:>12,} by {way}" if way != "not matched" else f"{count:>12,} {way}")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file."
)
@click.option(
    "--reports",
    multiple=True,
    help="A folder of zonemta pipeline dsn: complaints, and bounces after delivery; may be given more than once.",
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
@click.option(
    "--complaint-days",
    type=click.IntRange(1, 36500),
    default=3650,
    show_default=True,
    help="Older complaints are forgiven.",
)
@spark_options
@json_option
@reports_errors
def suppress(
    events: str,
    output: Path,
    reports: tuple[str, ...],
    days: int,
    times: int,
    complaint_days: int,
    where: Where,
    as_json: bool,
) -> None:
    """Who should get nothing more: addresses that bounced hard, and who complained.

    Writes a file for ``zonemta pipeline plan --suppress``; every line says until when it holds. An address that was
    delivered to after it bounced is not in it; who complained is.

    \b
    Example:
      zonemta pipeline suppress events --reports reports/june-mail --output bounced.txt
    """
    from zonemta_py.pipeline.jobs.suppress import Request, make_suppression

    request = Request(events, output, days, times, reports, complaint_days)
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            count = make_suppression(spark, request, step)
    if as_json:
        print_json({"entries": count})
    else:
        click.echo(f"{count:>12,} addresses, in {output}")
