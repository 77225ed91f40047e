"""``zonemta pipeline segment``."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from zonemta_py.cli.common import json_option, print_json, reports_errors
from zonemta_py.cli.options import email_column_option
from zonemta_py.cli.pipeline.spark import (
    SparkOptions,
    named_values,
    overwrite_option,
    require_list,
    spark_options,
)
from zonemta_py.core import clock
from zonemta_py.pipeline.rules.engagement import (
    ACTIVE_DAYS,
    NEW_DAYS,
    SUNSET_DAYS,
    EngagementPolicy,
)

if TYPE_CHECKING:
    from zonemta_py.pipeline.jobs.segment import SegmentCounts

DAYS = click.IntRange(1, 36500)


@click.command()
@click.argument("engagement", metavar="ENGAGEMENT")
@click.option(
    "--list",
    "source",
    metavar="LIST",
    required=True,
    help="The list to divide: a file, a directory, table:NAME or jdbc:…, as for plan.",
)
@click.option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    help="The directory of the segments, also on a file system of Spark (s3a://…).",
)
@click.option(
    "--tables",
    metavar="SCHEMA",
    help="Also write each segment as a table of this schema of a catalog of the session, such as lake.june (Iceberg, Delta, Hive).",
)
@overwrite_option
@email_column_option
@click.option(
    "--time-column",
    metavar="NAME",
    help="The column of ENGAGEMENT with the time.  [default: time, timestamp, time_ms or date]",
)
@click.option(
    "--joined-column",
    metavar="NAME",
    help="The column of LIST with the time when the address joined; without it there is no segment new.",
)
@click.option(
    "--active-days",
    type=DAYS,
    multiple=True,
    default=ACTIVE_DAYS,
    show_default=True,
    help="A segment active_N of the addresses that were active within N days; repeatable.",
)
@click.option(
    "--sunset-days",
    type=DAYS,
    default=SUNSET_DAYS,
    show_default=True,
    help="Addresses that were not active within N days are in the segment sunset.",
)
@click.option(
    "--new-days",
    type=DAYS,
    default=NEW_DAYS,
    show_default=True,
    help="An address that was never active is new for N days.",
)
@click.option(
    "--as-of",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DAY",
    help="The day (UTC) for which the segments are made; later opens and clicks do not count.  [default: today]",
)
@click.option(
    "--option",
    "engagement_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="An option of Spark's reader for ENGAGEMENT: sep=;, dbtable=opens, …; repeatable.",
)
@click.option(
    "--list-option",
    "list_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="The same for LIST; repeatable.",
)
@spark_options
@json_option
@reports_errors
def segment(
    *,
    active_days: tuple[int, ...],
    sunset_days: int,
    new_days: int,
    as_of: datetime | None,
    spark: SparkOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Divide a list by the last open or click of each address.

    ENGAGEMENT is a table of opens and clicks, with an address and a time. Each address of LIST gets one segment: active_30, active_90,
    active_180, new, lapsed or sunset. Writes them as Parquet, each of them a LIST for ``plan``, and OUTPUT/sunset.csv, a file for ``plan
    --suppress``.

    \b
    Example:
      zonemta pipeline segment opens.parquet --list list.csv --joined-column joined --output segments/june
    """
    from zonemta_py.pipeline.jobs.segment import SegmentRequest, make_segments

    day = clock.utc(clock.now_ms()).date() if as_of is None else as_of.date()
    policy = EngagementPolicy(day, active_days, sunset_days, new_days)
    for path in (options["engagement"], options["source"]):
        require_list(path)
    with spark.job() as (session, progress):
        counts = make_segments(session, SegmentRequest(policy=policy, **options), progress)
    if as_json:
        print_json(asdict(counts))
    else:
        _print(counts, options["output"])


def _print(counts: "SegmentCounts", output: str) -> None:
    click.echo(f"{counts.input:>12,} rows in the list")
    for name, count in counts.segments.items():
        click.echo(f"{count:>12,} {name}")
    click.echo(f"{counts.rejected:>12,} rejected")
    click.echo(f"{counts.duplicate:>12,} duplicate")
    click.echo(f"{counts.engagement.used:>12,} opens and clicks counted, in {output}")
    for count, problem in (
        (counts.engagement.bad_times, "opens and clicks without a time that can be read"),
        (counts.engagement.bad_addresses, "opens and clicks without a valid address"),
        (counts.engagement.later, f"opens and clicks later than {counts.as_of}"),
        (counts.bad_joined, "rows of the list whose time of joining cannot be read"),
    ):
        if count:
            click.secho(f"ignored: {count:,} {problem}", fg="yellow", err=True)
