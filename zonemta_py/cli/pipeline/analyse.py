"""``zonemta pipeline report``, ``compact`` and ``reconcile``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.options import DURATION, EXISTING_FILE
from zonemta_py.cli.pipeline.spark import SparkOptions, is_local, overwrite_option, spark_options


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--plan",
    "plans",
    metavar="PLAN",
    multiple=True,
    help="Count the campaign of this plan separately; repeatable.",
)
@click.option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    help="The directory of the report, also on a file system of Spark (s3a://…).",
)
@click.option(
    "--reports",
    metavar="DIRECTORY|table:NAME",
    multiple=True,
    help="The output of zonemta pipeline dsn, for complaints; repeatable.",
)
@click.option(
    "--tables",
    metavar="SCHEMA",
    help="Also write the tables to this schema of a catalog of the session, such as lake.mail (Iceberg, Delta, Hive).",
)
@overwrite_option
@click.option("--warmup", type=EXISTING_FILE, help="A warm-up schedule to compare with what was sent.")
@click.option(
    "--update",
    is_flag=True,
    help="Create the report, or bring it up to date: only new segments are read.",
)
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    help="Like --update, again and again at this interval, such as 5m, until interrupted.",
)
@spark_options
@json_option
@reports_errors
def report(
    *,
    warmup: Path | None,
    update: bool,
    every_s: float | None,
    spark: SparkOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Report on deliveries: rates, times, replies, anomalous hours.

    EVENTS is the event log of the relay (the directory in events.directory), or the output of ``zonemta pipeline
    compact``, OUTPUT/events or table:NAME. Writes Parquet tables and report.html, a page that needs no other file.

    \b
    Examples:
      zonemta pipeline report events --plan plans/june --output reports/june
      zonemta pipeline report events --output reports/now --every 5m
    """
    from zonemta_py.config.warmup import read_warmups
    from zonemta_py.pipeline.jobs.report import NoAttempts, ReportRequest, make_report, update_report
    from zonemta_py.pipeline.spark.event_log import damage_counts

    request = ReportRequest(**options, warmups=read_warmups(warmup) if warmup else ())
    keeps_state = update or every_s is not None
    unopened = None if keeps_state else request.events
    # With plans Spark joins their campaigns.
    with spark.job(unopened, light=not request.plans, deferred=not request.plans) as (session, progress):
        if keeps_state:
            try:
                sums, spark.log = update_report(session, request, every_s, progress)
            except NoAttempts as exc:
                spark.log = exc.log  # with what is damaged in it
                raise
        else:
            sums = make_report(session, request, spark.log, progress)
    if as_json:
        print_json({**sums, **damage_counts(spark.log)})
        return
    for name in ("delivered", "deferred", "bounced", "expired"):
        click.echo(f"{sums[name]:>12,} {name}")
    click.echo(f"{request.output}/report.html")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    help="The directory to write to; the Parquet files are in its subdirectory events.",
)
@click.option(
    "--table",
    metavar="NAME",
    help="Append the events to this table of a catalog of the session instead, such as lake.mail.events (Iceberg, Delta, Hive); "
    "OUTPUT keeps what has been read.",
)
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    help="Again and again at this interval, such as 1h, until interrupted; otherwise once.",
)
@spark_options
@json_option
@reports_errors
def compact(*, spark: SparkOptions, as_json: bool, **options: Any) -> None:
    """Convert segments of the event log to Parquet, by the hour of the event.

    Each segment is read once and each event written once; another run reads only new segments. Of damaged segments what
    can be read is written. The jobs that read EVENTS read OUTPUT/events as well, or with --table table:NAME. It is meant
    for queries of your own and for what is kept after the segments are deleted: a report is faster from segments.

    \b
    Examples:
      zonemta pipeline compact events --output lake --every 1h
      zonemta pipeline compact events --output lake-state --table lake.mail.events
    """
    from zonemta_py.pipeline.jobs.compact import CompactRequest
    from zonemta_py.pipeline.jobs.compact import compact as run
    from zonemta_py.pipeline.spark.event_log import damage_counts

    request = CompactRequest(**options)
    with spark.job(light=is_local(request.output)) as (session, progress):
        result = run(session, request, progress)
        spark.log = result.log
    if as_json:
        print_json({"records": result.records, **damage_counts(result.log)})
    else:
        click.echo(f"{result.records:>12,} events, in {request.target}")


@click.command()
@click.argument("plan", metavar="PLAN")
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output",
    metavar="DIRECTORY|table:NAME",
    help="Also write every recipient with its outcome into this directory, as Parquet, or to a table of a catalog of the session.",
)
@overwrite_option
@spark_options
@json_option
@reports_errors
def reconcile(*, spark: SparkOptions, as_json: bool, events: str, **options: Any) -> None:
    """Count the recipients of a plan by outcome.

    Matches the plan, its ledger and the events of the relay. A recipient without a final outcome is waiting at the
    relay, refused, deferred or unsent. The sums are checked against the plan.

    \b
    Example:
      zonemta pipeline reconcile plans/june events
    """
    from zonemta_py.pipeline.jobs.reconcile import ReconcileRequest
    from zonemta_py.pipeline.jobs.reconcile import reconcile as run
    from zonemta_py.pipeline.spark.event_log import damage_counts

    with spark.job(events) as (session, progress):
        request = ReconcileRequest(log=spark.log, **options)
        counts = run(session, request, progress)
    if as_json:
        print_json({**counts, **damage_counts(spark.log)})
        return
    for name, count in counts.items():
        click.echo(f"{count:>12,} {name}")
