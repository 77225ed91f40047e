"""``zonemta pipeline anomaly``, ``recommend`` and ``simulate``."""

from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, reports_errors
from zonemta_py.cli.pipeline.options import Where, spark_options
from zonemta_py.cli.progress import step_shower
from zonemta_py.core.errors import ConfigError

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="The relay's configuration.",
)


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option("--output", help="Also write the rows into this folder, as Parquet.")
@click.option(
    "--score",
    type=click.FloatRange(1),
    default=4.0,
    show_default=True,
    help="So many deviations from the median of the hours before it.",
)
@click.option(
    "--attempts",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Hours with fewer do not count.",
)
@click.option(
    "--history",
    type=click.IntRange(3, 168),
    default=24,
    show_default=True,
    help="So many such hours must have been before it; at most 168 are looked at.",
)
@spark_options
@json_option
@reports_errors
def anomaly(
    events: str,
    output: str | None,
    score: float,
    attempts: int,
    history: int,
    where: Where,
    as_json: bool,
) -> None:
    """Hours in which a provider's deferrals or bounces were unlike before.

    Each provider is compared with its own history; the replies that explain the hour are told with it.

    \b
    Example:
      zonemta pipeline anomaly events --score 6
    """
    from zonemta_py.pipeline.jobs.anomaly import Request, find_anomalies
    from zonemta_py.pipeline.transforms.anomalies import Sensitivity

    request = Request(events, Sensitivity(score, attempts, history), output)
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            rows = [row.asDict(recursive=True) for row in find_anomalies(spark, request, step)]
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
        click.echo("every hour was as usual, or there is too little history")


@click.command()
@click.argument("events", metavar="EVENTS")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The YAML file.",
)
@config_option
@spark_options
@json_option
@reports_errors
def recommend(events: str, output: Path, config_path: Path | None, where: Where, as_json: bool) -> None:
    """Settings for zones of single providers that the events speak for.

    Writes YAML with the evidence beside each line, which the relay understands. Nothing is applied by itself. With
    the configuration that was in force it also says where more sessions would help.

    \b
    Example:
      zonemta pipeline recommend events -c zonemta.yaml --output recommended.yaml
    """
    from zonemta_py.pipeline.jobs.recommend import Request
    from zonemta_py.pipeline.jobs.recommend import recommend as run

    request = Request(events, output, read_config(config_path) if config_path else None)
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            found = run(spark, request, step)
    for provider, lines in found.items():
        for line in lines:
            if as_json:
                print_json({"provider": provider, "key": line.key, "value": line.value, "evidence": line.evidence})  # fmt: skip
            else:
                click.echo(f"{provider}: {line.key}: {line.value}\n    {line.evidence}")
    if not as_json:
        click.echo(f"in {output}" if found else f"no reason to change anything; {output} says so")


@click.command()
@click.argument("events", metavar="EVENTS")
@config_option
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE,…",
    help="A key of the configuration and values to try; all combinations are played.",
)
@click.option("--plan", "plan_path", help="Play this plan instead of what the events say was accepted.")
@click.option(
    "--rate",
    "per_s",
    type=click.FloatRange(0, min_open=True),
    help="Recipients a second at which the plan is submitted; without it all are there at once.",
)
@click.option(
    "--most",
    "most_per_s",
    type=click.FloatRange(0, min_open=True),
    help="Transactions a second that the relay itself manages, from zonemta bench.",
)
@click.option("--output", help="Also write the rows into this folder, as Parquet.")
@spark_options
@json_option
@reports_errors
def simulate(
    events: str,
    config_path: Path | None,
    changes: tuple[str, ...],
    plan_path: str | None,
    per_s: float | None,
    most_per_s: float | None,
    output: str | None,
    where: Where,
    as_json: bool,
) -> None:
    """How long a load would take under other settings, and what would hold it back.

    Plays what EVENTS say was accepted, or a plan, through the zones of the configuration, by the relay's own rules and
    with peers that answer as they did in EVENTS.

    \b
    Example:
      zonemta pipeline simulate events -c zonemta.yaml --plan plans/june \\
          --set zones.default.connections_per_domain=10,20,40 --set zones.default.rate=200/s,400/s
    """
    from zonemta_py.pipeline.jobs.simulate import Request, run
    from zonemta_py.pipeline.rules.scenarios import scenarios

    if per_s and not plan_path:
        raise ConfigError("--rate is for a plan; what the events say was accepted has its own times")
    text = config_path.read_text(encoding="utf-8") if config_path else "{}"
    played = scenarios(text, config_path or Path("zonemta.yaml"), changes)
    request = Request(events, played, plan_path, per_s, most_per_s, output)
    with step_shower() as step:
        step("starting Spark")
        with where.session() as spark:
            rows = run(spark, request, step)
    for row in rows:
        if as_json:
            print_json(row)
        else:
            _show(row)


def _show(row: dict[str, Any]) -> None:
    click.echo(f"{row['zone']}{': ' if row['settings'] else ''}{row['settings']}")
    click.echo(
        f"    done in {row['completed_s']:,.0f} s; {row['delivered']:,} delivered, {row['bounced']:,} bounced, "
        f"{row['expired']:,} expired, {row['deferrals']:,} times deferred, at most {row['backlog_peak']:,} waiting"
    )
    if row["p50_s"] is not None:
        click.echo(
            f"    half delivered within {row['p50_s']:,.1f} s, 95 % {row['p95_s']:,.1f} s, 99 % {row['p99_s']:,.1f} s"
        )
    held = {
        name: row[f"limited_by_{name}_s"] for name in ("rate", "connections", "connections_per_domain")
    }
    for name, seconds in held.items():
        if seconds >= 0.01 * row["completed_s"] > 0:
            click.echo(f"    {name} held mail back for {seconds:,.0f} s")
