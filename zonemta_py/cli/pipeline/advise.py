"""``zonemta pipeline anomaly``, ``recommend`` and ``simulate``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.options import ConfigValue
from zonemta_py.cli.pipeline.spark import (
    SparkOptions,
    relay_config_option,
    rows_option,
    spark_options,
)
from zonemta_py.config.units import rate
from zonemta_py.core.errors import ConfigError


@click.command()
@click.argument("events", metavar="EVENTS")
@rows_option
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
    *, events: str, output: str | None, spark: SparkOptions, as_json: bool, **thresholds: Any
) -> None:
    """List hours in which the deferrals or bounces of a provider were unusual.

    Each provider is compared with its own history; each hour comes with the replies that explain it.

    \b
    Example:
      zonemta pipeline anomaly events --score 6
    """
    from zonemta_py.pipeline.jobs.anomaly import AnomalyRequest, find_anomalies
    from zonemta_py.pipeline.transforms.anomalies import AnomalyThresholds

    with spark.job(events) as (session, progress):
        request = AnomalyRequest(spark.log, AnomalyThresholds(**thresholds), output)
        rows = find_anomalies(session, request, progress)
    for row in rows:
        if as_json:
            print_json({**row, "hour": f"{row['hour']:%Y-%m-%dT%H:00Z}"})
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

    config = read_config(config_path) if config_path else None
    with spark.job(events) as (session, progress):
        request = RecommendRequest(spark.log, output, config)
        found = run(session, request, progress)
    for provider, settings in found.items():
        for each in settings:
            if as_json:
                print_json({"provider": provider, "key": each.key, "value": each.value, "evidence": each.evidence})  # fmt: skip
            else:
                click.echo(f"{provider}: {each.key}: {each.value}\n    {each.evidence}")
    if not as_json:
        click.echo(f"in {output}" if found else f"no reason to change a setting; {output} says so")


def _per_second(value: object) -> float:
    """``100/s``, ``6000/m``, or a number per second. Raises ValueError."""
    try:
        per_s = float(str(value))
    except ValueError:
        found = rate(value)
        per_s = found.events / found.per_s
    if not 0 < per_s < float("inf"):
        raise ValueError("a rate above 0, such as 100/s")
    return per_s


PER_SECOND = ConfigValue("RATE", _per_second)


@click.command()
@click.argument("events", metavar="EVENTS")
@relay_config_option
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE,…",
    help="Values of a configuration key to try; repeatable: all combinations are simulated.",
)
@click.option(
    "--plan", metavar="PLAN", help="Simulate this plan instead of the accepted mail in EVENTS."
)
@click.option(
    "--rate",
    "per_s",
    type=PER_SECOND,
    help="The rate in recipients at which the plan is submitted, such as 100/s; otherwise all at once.",
)
@click.option(
    "--most",
    "relay_limit_per_s",
    type=PER_SECOND,
    help="The highest rate of transactions that the relay itself can do, from zonemta bench.",
)
@rows_option
@spark_options
@json_option
@reports_errors
def simulate(
    *,
    config_path: Path | None,
    changes: tuple[str, ...],
    spark: SparkOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict how long a delivery takes under other settings, and which limit holds it back.

    Simulates the accepted mail in EVENTS, or a plan, in the zones of the configuration: with the relay's own rules,
    and peers that answer as they did in EVENTS.

    \b
    Example:
      zonemta pipeline simulate events -c zonemta.yaml --plan plans/june \\
          --set zones.default.connections_per_domain=10,20,40 --set zones.default.rate=200/s,400/s
    """
    from zonemta_py.pipeline.jobs.simulate import SimulateRequest, simulate_scenarios
    from zonemta_py.pipeline.rules.scenarios import scenarios

    if options["per_s"] and not options["plan"]:
        raise ConfigError("--rate needs --plan: the accepted mail in the events has its own times")
    text = config_path.read_text(encoding="utf-8") if config_path else "{}"
    combinations = scenarios(text, config_path or Path("zonemta.yaml"), changes)
    with spark.job(options.pop("events")) as (session, progress):
        request = SimulateRequest(log=spark.log, scenarios=combinations, **options)
        rows = simulate_scenarios(session, request, progress)
    for row in rows:
        if as_json:
            print_json(row)
        else:
            _print_prediction(row)


def _print_prediction(row: dict[str, Any]) -> None:
    click.echo(f"{row['zone']}{': ' if row['settings'] else ''}{row['settings']}")
    click.echo(
        f"    done in {row['completed_s']:,.0f} s; {row['delivered']:,} delivered, {row['bounced']:,} bounced, "
        f"{row['expired']:,} expired, {row['deferrals']:,} deferrals, at most {row['backlog_peak']:,} waiting"
    )
    if row["p50_s"] is not None:
        click.echo(
            f"    half delivered within {row['p50_s']:,.1f} s, 95 % {row['p95_s']:,.1f} s, 99 % {row['p99_s']:,.1f} s"
        )
    for name in ("rate", "connections", "connections_per_domain"):
        limited_s = row[f"limited_by_{name}_s"]
        if limited_s >= 0.01 * row["completed_s"] > 0:
            click.echo(f"    limited by {name} for {limited_s:,.0f} s")
