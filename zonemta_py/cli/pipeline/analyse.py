"""``zonemta pipeline report``, ``compact`` and ``reconcile``."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.options import DURATION, EXISTING_FILE
from zonemta_py.cli.pipeline.common import (
    SparkOptions,
    is_local,
    overwrite_option,
    relay_config_option,
    rows_option,
    spark_options,
)


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
    "--interval",
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
      zonemta pipeline report events --output reports/now --interval 5m
    """
    from zonemta_py.config.warmup import read_warmups
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.job import NoAttempts, ReportRequest, make_report, update_report

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


@click.command(short_help="Convert segments of the event log to Parquet.")
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
    "--interval",
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
      zonemta pipeline compact events --output lake --interval 1h
      zonemta pipeline compact events --output lake-state --table lake.mail.events
    """
    from zonemta_py.pipeline.events.compact import CompactRequest
    from zonemta_py.pipeline.events.compact import compact as run
    from zonemta_py.pipeline.events.log import damage_counts

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
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.outcomes import ReconcileRequest
    from zonemta_py.pipeline.report.outcomes import reconcile as run

    with spark.job(events) as (session, progress):
        request = ReconcileRequest(log=spark.log, **options)
        counts = run(session, request, progress)
    if as_json:
        print_json({**counts, **damage_counts(spark.log)})
        return
    for name, count in counts.items():
        click.echo(f"{count:>12,} {name}")


@click.command(short_help="List hours with unusual deferrals or bounces.")
@click.argument("events", metavar="EVENTS")
@rows_option
@overwrite_option
@click.option(
    "--score",
    type=click.FloatRange(1),
    default=4.0,
    show_default=True,
    help="The number of deviations from the median of earlier hours from which an hour is listed.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Ignore hours with fewer attempts.",
)
@click.option(
    "--history",
    type=click.IntRange(3, 168),
    default=24,
    show_default=True,
    help="The number of earlier hours that are needed; at most the last 168 are used.",
)
@spark_options
@json_option
@reports_errors
def anomaly(
    *,
    events: str,
    output: str | None,
    overwrite: bool,
    spark: SparkOptions,
    as_json: bool,
    **thresholds: Any,
) -> None:
    """List hours in which the deferrals or bounces of a provider were unusual.

    Each provider is compared with its own history; each hour comes with the replies that explain it.

    \b
    Example:
      zonemta pipeline anomaly events --score 6
    """
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.anomalies import AnomalyRequest, AnomalyThresholds, find_anomalies

    with spark.job(events, light=True, deferred=True) as (session, progress):
        request = AnomalyRequest(spark.log, AnomalyThresholds(**thresholds), output, overwrite)
        rows = find_anomalies(session, request, progress)
    for row in rows:
        if as_json:
            print_json({**row, "hour": f"{row['hour']:%Y-%m-%dT%H:00Z}", **damage_counts(spark.log)})
            continue
        click.echo(
            f"{row['hour']:%Y-%m-%d %H}:00  {row['provider']:<24} {row['measure']:<8} "
            f"{100 * row['rate']:5.1f} %, usually {100 * row['usual']:.1f} %  ({row['score']:+.0f})"
        )
        for each in row["replies"] or ():
            click.echo(f"{each['count']:>12,} {each['reason']}: {each['template']}")
    if not rows and not as_json:
        click.echo("no hour was unusual, or there is too little history")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output",
    metavar="FILE",
    required=True,
    help="The YAML file to write, also on a file system of Spark (s3a://…).",
)
@relay_config_option
@spark_options
@json_option
@reports_errors
def recommend(
    *, events: str, output: str, config_path: Path | None, spark: SparkOptions, as_json: bool
) -> None:
    """Recommend settings for zones of single providers.

    Writes YAML that the relay accepts, with the evidence above each setting. Nothing is applied automatically. With
    the configuration that was in force it also says where more connections would help.

    \b
    Example:
      zonemta pipeline recommend events -c zonemta.yaml --output recommended.yaml
    """
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.report.advice import RecommendRequest
    from zonemta_py.pipeline.report.advice import recommend as run

    config = read_config(config_path) if config_path else None
    with spark.job(events) as (session, progress):
        request = RecommendRequest(spark.log, output, config)
        found = run(session, request, progress)
    for provider, settings in found.items():
        for each in settings:
            if as_json:
                row = {"provider": provider, "key": each.key, "value": each.value, "evidence": each.evidence}  # fmt: skip
                print_json({**row, **damage_counts(spark.log)})
            else:
                click.echo(f"{provider}: {each.key}: {each.value}\n    {each.evidence}")
    if not as_json:
        click.echo(f"in {output}" if found else f"no reason to change a setting; {output} says so")


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
    from zonemta_py.pipeline.feedback.reports import DsnRequest, read_reports

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


@click.command(short_help="List the addresses that should get no more mail.")
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
    "--min-bounces",
    "times",
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
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.feedback.bounces import SuppressRequest, make_suppression

    with spark.job(events) as (session, progress):
        request = SuppressRequest(log=spark.log, **options)
        count = make_suppression(session, request, progress)
    if as_json:
        print_json({"entries": count, **damage_counts(spark.log)})
    else:
        click.echo(f"{count:>12,} addresses, in {request.output}")
