"""``zonemta pipeline anomaly`` and ``recommend``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.pipeline.spark import (
    SparkOptions,
    overwrite_option,
    relay_config_option,
    rows_option,
    spark_options,
)


@click.command()
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
    from zonemta_py.pipeline.jobs.anomaly import AnomalyRequest, find_anomalies
    from zonemta_py.pipeline.spark.event_log import damage_counts
    from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds

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
    from zonemta_py.pipeline.jobs.recommend import RecommendRequest
    from zonemta_py.pipeline.jobs.recommend import recommend as run
    from zonemta_py.pipeline.spark.event_log import damage_counts

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
