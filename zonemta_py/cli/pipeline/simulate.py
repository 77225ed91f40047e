"""``zonemta pipeline simulate``."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from zonemta_py.cli.common import echo, json_option, print_json, reports_errors
from zonemta_py.cli.options import ConfigValue
from zonemta_py.cli.pipeline.common import (
    SparkOptions,
    overwrite_option,
    relay_config_option,
    rows_option,
    spark_options,
)
from zonemta_py.config.values import rate
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError

CHANGES_MAX = 10  # of a path, that are printed


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


@click.command(short_help="Predict how long a delivery takes under other settings.")
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
    "--max-rate",
    "relay_limit_per_s",
    type=PER_SECOND,
    help="The highest rate of transactions that the relay itself can do, from zonemta bench.",
)
@click.option(
    "--start",
    "begins",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="When the mail begins (UTC), which warm-up schedules need; otherwise when it did, a plan now.",
)
@rows_option
@overwrite_option
@spark_options
@json_option
@reports_errors
def simulate(
    *,
    config_path: Path | None,
    changes: tuple[str, ...],
    spark: SparkOptions,
    as_json: bool,
    begins: datetime | None,
    **options: Any,
) -> None:
    """Predict how long a delivery takes under other settings, and which limit holds it back.

    Simulates the accepted mail in EVENTS, or a plan, in the zones of the configuration: with the relay's own rules,
    limits of providers, controller, shaping and warm-up, and peers that answer as they did in EVENTS.

    \b
    Example:
      zonemta pipeline simulate events -c zonemta.yaml --set shaping.file=old.yaml,new.yaml
      zonemta pipeline simulate events -c zonemta.yaml --plan plans/june \\
          --set zones.default.connections_per_domain=10,20,40 --set zones.default.rate=200/s,400/s
    """
    from zonemta_py.pipeline.events.log import damage_counts
    from zonemta_py.pipeline.simulate.job import SimulateRequest, scenarios, simulate_scenarios

    if options["per_s"] and not options["plan"]:
        raise ConfigError("--rate needs --plan: the accepted mail in the events has its own times")
    text = config_path.read_text(encoding="utf-8") if config_path else "{}"
    combinations = scenarios(text, config_path or Path("zonemta.yaml"), changes)
    with spark.job(options.pop("events")) as (session, progress):
        begins_ms = None if begins is None else round(begins.replace(tzinfo=UTC).timestamp() * 1000)
        request = SimulateRequest(log=spark.log, scenarios=combinations, begins_ms=begins_ms, **options)
        rows = simulate_scenarios(session, request, progress)
    for row in rows:
        if as_json:
            print_json({**row, **damage_counts(spark.log)})
        else:
            _print_prediction(row)


def _print_prediction(row: dict[str, Any]) -> None:
    click.echo(f"{row['zone']}{': ' if row['settings'] else ''}{row['settings']}")
    click.echo(
        f"    done in {row['completed_s']:,.0f} s; {row['delivered']:,} delivered, {row['bounced']:,} bounced, "
        f"{row['expired']:,} expired, {row['held']:,} held, {row['deferrals']:,} deferrals, "
        f"at most {row['backlog_peak']:,} waiting"
    )
    if row["p50_s"] is not None:
        click.echo(
            f"    half delivered within {row['p50_s']:,.1f} s, 95 % {row['p95_s']:,.1f} s, 99 % {row['p99_s']:,.1f} s"
        )
    for name in ("rate", "connections", "connections_per_domain"):
        limited_s = row[f"limited_by_{name}_s"]
        if limited_s >= 0.01 * row["completed_s"] > 0:
            click.echo(f"    limited by {name} for {limited_s:,.0f} s")
    for path in row["paths"] or ():
        if path["limited_s"] or path["changes"] or path["refused"]:
            _print_path(path)


def _print_path(path: dict[str, Any]) -> None:
    """A path on which something was limited, refused or changed."""
    echo(
        f"    {path['provider']} from {path['address']}: {path['transactions']:,} messages, {path['per_s']:,.1f}/s, "
        f"at most {path['minute_max']:,} in a minute, waited up to {path['wait_max_s']:,.0f} s"
    )
    if path["refused"]:
        click.echo(
            f"        {path['refused']:,} of {path['recipients']:,} recipients refused or deferred because of us"
        )
    for name, limited_s in sorted(path["limited_s"].items(), key=lambda each: -each[1]):
        if limited_s >= 1:
            click.echo(f"        limited by {name} for {limited_s:,.0f} s")
    for change in path["changes"][:CHANGES_MAX]:
        at = datetime.fromtimestamp(change["time_ms"] / 1000, UTC)
        before, after = (clock.with_times(change[name]) for name in ("from", "to"))
        echo(f"        {at:%Y-%m-%d %H:%M:%S} {change['what']}: {before} → {after}: {change['cause']}")
    if len(path["changes"]) > CHANGES_MAX:
        click.echo(f"        and {len(path['changes']) - CHANGES_MAX:,} changes more; --json has all")
