"""``zonemta pipeline report``, ``compact`` and ``reconcile``."""

from pathlib import Path

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.parameters import DURATION
from zonemta_py.cli.pipeline.options import Where, spark_options
from zonemta_py.cli.progress import step_shower


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--plan", "plans", multiple=True, help="Tell its campaign apart; may be given more than once."
)
@click.option("--output", required=True, help="The folder of the report; it must not exist.")
@click.option(
    "--warmup",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="A warm-up schedule, to be compared with what was sent.",
)
@click.option(
    "--update",
    is_flag=True,
    help="Make the report, or bring it up to date: only segments that are new are read.",
)
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    help="As --update, again and again at this interval, until interrupted: 5m, 1h.",
)
@spark_options
@json_option
@reports_errors
def report(
    events: str,
    plans: tuple[str, ...],
    output: str,
    warmup: Path | None,
    update: bool,
    every_s: float | None,
    where: Where,
    as_json: bool,
) -> None:
    """How delivery went: rates, times, replies, hours unlike others.

    EVENTS is the relay's event log, the folder in events.directory, or what ``zonemta pipeline compact`` made of it.
    Writes Parquet tables and report.html, a page that needs nothing else.

    \b
    Examples:
      zonemta pipeline report events --plan plans/june --output reports/june
      zonemta pipeline report events --output reports/now --every 5m
    """
    from zonemta_py.pipeline.jobs.report import Request, make_report, update_report
    from zonemta_py.pipeline.rules.warmup import read_warmups

    request = Request(events, plans, output, read_warmups(warmup) if warmup else ())
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            if update or every_s is not None:
                sums = update_report(spark, request, every_s, step)
            else:
                sums = make_report(spark, request, step)
    if as_json:
        print_json(sums)
        return
    for name in ("delivered", "deferred", "bounced", "expired"):
        click.echo(f"{sums[name]:>12,} {name}")
    click.echo(f"{output}/report.html")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option("--output", required=True, help="The folder of the Parquet files, in OUTPUT/events.")
@click.option(
    "--every",
    "every_s",
    type=DURATION,
    help="Again and again at this interval, until interrupted: 5m, 1h. Without it once.",
)
@spark_options
@json_option
@reports_errors
def compact(events: str, output: str, every_s: float | None, where: Where, as_json: bool) -> None:
    """Segments of the event log into Parquet, by the hour of the event.

    Each segment is read once, each record written once; run it again and only new segments are read. The jobs that
    read EVENTS read OUTPUT/events as well, and faster.

    \b
    Example:
      zonemta pipeline compact events --output lake --every 1h
    """
    from zonemta_py.pipeline.jobs.compact import Request
    from zonemta_py.pipeline.jobs.compact import compact as run

    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            count = run(spark, Request(events, output, every_s), step)
    if as_json:
        print_json({"records": count})
    else:
        click.echo(f"{count:>12,} records, in {output}/events")


@click.command()
@click.argument("plan_path", metavar="PLAN")
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output", help="Also write every recipient with its outcome into this folder, as Parquet."
)
@spark_options
@json_option
@reports_errors
def reconcile(plan_path: str, events: str, output: str | None, where: Where, as_json: bool) -> None:
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
        with where.session() as spark:
            counts = run(spark, plan_path, events, output, step)
    if as_json:
        print_json(counts)
        return
    for name, count in counts.items():
        click.echo(f"{count:>12,} {name}")
