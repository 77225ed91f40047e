"""``zonemta pipeline plan``."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonemta_py.cli.common import json_option, print_json, read_config, read_message, reports_errors
from zonemta_py.cli.options import (
    EXISTING_FILE,
    ConfigValue,
    case_sensitive_option,
    email_column_option,
    message_option,
    per_message_option,
)
from zonemta_py.cli.pipeline.common import (
    SparkOptions,
    are_short,
    named_values,
    overwrite_option,
    require_list,
    spark_options,
)
from zonemta_py.config.load import parse_config
from zonemta_py.config.providers import load_providers
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError
from zonemta_py.pipeline.plan.rows import Selection, parse_share, parse_variants
from zonemta_py.pipeline.plan.segment import ACTIVE_DAYS, NEW_DAYS, SUNSET_DAYS, EngagementPolicy
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain

if TYPE_CHECKING:
    from zonemta_py.pipeline.plan.request import PlanManifest, PlanRequest
    from zonemta_py.pipeline.plan.segment import SegmentCounts
    from zonemta_py.pipeline.plan.suppression import Suppression


SHARE = ConfigValue("PERCENT", lambda text: parse_share(str(text)))
VARIANTS = ConfigValue("VARIANTS", lambda text: parse_variants(str(text)))


def named_counts(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, int]:
    """The values of a repeatable option ``NAME=N``. Raises click.BadParameter."""
    found = {}
    for name, text in named_values(context, parameter, texts).items():
        if not text.isdecimal():
            raise click.BadParameter(f"'{name}={text}': expected a number", context, parameter)
        found[name] = int(text)
    return found


@click.command()
@click.argument("source", metavar="LIST")
@message_option
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="The envelope sender.")
@click.option(
    "--campaign",
    metavar="NAME",
    required=True,
    help="The name of the campaign, for reports and --once-per.",
)
@click.option(
    "--once-per",
    type=click.Choice(["plan", "campaign"]),
    default="plan",
    show_default=True,
    help="campaign: a recipient that got another plan of this campaign does not get the message again, within "
    "the relay's submission_key.window; each recipient gets a message of its own.",
)
@click.option(
    "--suppress",
    metavar="SOURCE",
    multiple=True,
    help="Leave out the addresses and domains in this file, directory or table (table:NAME, jdbc:…): CSV, one on each line, "
    "or columns entry, reason, until and scope; repeatable.",
)
@click.option(
    "--scope",
    "scopes",
    metavar="NAME",
    multiple=True,
    help="Suppression entries of this scope apply, besides those without a scope; repeatable.",
)
@click.option(
    "--sample",
    type=SHARE,
    metavar="PERCENT",
    help="Plan only a part of the recipients, such as 5%: always the same ones in one campaign.",
)
@click.option(
    "--split",
    "variants",
    type=VARIANTS,
    metavar="NAME=PERCENT,…",
    help="Variants of a test, such as a=45,b=45,holdout=10. A recipient is in the same one in every plan of the campaign.",
)
@click.option("--variant", metavar="NAME", help="Plan only the recipients of this variant of --split.")
@click.option(
    "--cap-per-day",
    "caps",
    multiple=True,
    metavar="PROVIDER=N",
    callback=named_counts,
    help="At most N recipients of this provider (google, microsoft, or a domain); the others are in OUTPUT/postponed, the "
    "LIST of tomorrow's plan; repeatable.",
)
@click.option(
    "--send-at-column",
    metavar="NAME",
    help="The column with the time from which a recipient's message is sent; where it is empty, at once.",
)
@click.option(
    "--output",
    metavar="DIRECTORY",
    required=True,
    help="The directory of the plan. What a run that was killed left there is replaced.",
)
@click.option(
    "--tables",
    metavar="SCHEMA",
    help="Also write the envelopes, and the rows that are left out, as tables of this schema of a catalog of the session, such as "
    "lake.june (Iceberg, Delta, Hive).",
)
@click.option("--overwrite", is_flag=True, help="Replace a plan that was not sent yet.")
@email_column_option
@click.option(
    "-c",
    "--config",
    "config_path",
    type=EXISTING_FILE,
    help="The configuration of the relay: its routing determines the zone of each recipient.",
)
@per_message_option
@click.option(
    "--slots",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="Parts of the plan that can be sent at the same time.",
)
@case_sensitive_option
@click.option(
    "--option",
    "reader_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="An option of Spark's reader: sep=;, encoding=ISO-8859-1, dbtable=people, …; repeatable.",
)
@click.option(
    "--suppress-option",
    "suppress_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=named_values,
    help="The same for every --suppress SOURCE that is no text, such as dbtable=unsubscribed; repeatable.",
)
@spark_options
@json_option
@reports_errors
def plan(*, spark: SparkOptions, as_json: bool, **options: Any) -> None:
    """Decide which recipients get the message, and store the plan.

    LIST is a .csv, .tsv, .jsonl, .parquet or .orc file, a directory of such files, table:NAME, or jdbc:… with
    --option dbtable=…. Each row is planned, or left out as rejected, duplicate, suppressed, not sampled, of another
    variant or postponed, with a reason; the sums are checked. Nothing is sent.

    \b
    Examples:
      zonemta pipeline plan list.csv --message letter.eml --from news@example.com \\
          --campaign june --suppress bounced.txt --output plans/june
      zonemta pipeline plan list.csv --message b.eml --from news@example.com --campaign june \\
          --split a=45,b=45,holdout=10 --variant b --output plans/june-b
    """
    from zonemta_py.pipeline.plan.job import make_plan

    request = _request(**options)
    with spark.job(light=are_short((request.source, *request.suppress))) as (session, progress):
        result = make_plan(session, request, progress)
    found = result.suppression
    if as_json:
        manifest = asdict(result.manifest)
        print_json({**manifest, "bad_suppression_lines": found.bad if found else 0})
    else:
        _print(result.manifest, request.output)
    if found:
        _print_bad_rows(found)


def _request(
    *,
    source: str,
    sender: str,
    message_path: Path,
    config_path: Path | None,
    **options: Any,
) -> "PlanRequest":
    """The request from the options of the command. Raises ConfigError and LocalError."""
    from zonemta_py.pipeline.plan.request import PlanRequest

    try:
        sender = normalise(sender) if sender else ""
    except AddressError as exc:
        raise ConfigError(f"--from '{sender}': {exc}") from exc
    selection = _selection(options)
    if options["scopes"] and not options["suppress"]:
        raise ConfigError("--scope needs --suppress: it chooses entries of suppression lists")
    if not options["campaign"].strip():
        raise ConfigError("--campaign '': expected a name")
    config = read_config(config_path) if config_path else parse_config("{}", Path("zonemta.yaml"))
    selection = replace(selection, caps=_checked_caps(selection.caps or {}, config))
    message = read_message(message_path)
    for each in (source, *options["suppress"]):
        require_list(each)
    return PlanRequest(
        source=source, sender=sender, message=message, config=config, selection=selection, **options
    )


def _checked_caps(caps: Mapping[str, int], config: Config) -> dict[str, int]:
    """``caps`` by the names of providers as the relay has them. Raises ConfigError for one that would cap nothing."""
    table, found = load_providers(config.providers.file, shipped=config.providers.shipped), {}
    for name, most in caps.items():
        lower = name.lower()
        meant = table.of_domain(lower) or lower
        if name not in table.providers and meant in table.providers:
            raise ConfigError(
                f"--cap-per-day {name}: found no such provider; expected {meant}={caps[name]}"
            )
        if problem := table.problem_of(name):
            raise ConfigError(f"--cap-per-day {name}: {problem}")
        try:
            normal = name if name.isascii() else normalise_domain(name)
        except AddressError as exc:
            raise ConfigError(f"--cap-per-day {name}: {exc}") from exc
        if normal in found:
            raise ConfigError(f"--cap-per-day {name}: {normal} has a cap already")
        found[normal] = most
    return found


def _selection(options: dict[str, Any]) -> Selection:
    """Takes its options out of ``options``. Raises ConfigError."""
    sample, variants, variant, caps = (
        options.pop(name) for name in ("sample", "variants", "variant", "caps")
    )
    names = [name for name, _ in variants or ()]
    if variant is not None and variant not in names:
        raise ConfigError(
            f"--variant {variant}: expected one of --split: {', '.join(names) or 'none given'}"
        )
    if variants and variant is None:
        raise ConfigError("--split needs --variant: a plan is for one of the variants")
    return Selection(options["campaign"], sample or 1.0, variants or (), variant, caps or None)


def _print(manifest: "PlanManifest", output: str) -> None:
    click.echo(f"{manifest.input:>12,} rows in the list")
    for name in ("planned", "rejected", "duplicate", "suppressed"):
        click.echo(f"{getattr(manifest, name):>12,} {name}")
    for name in ("not_sampled", "other_variant", "postponed"):
        if getattr(manifest, name):
            click.echo(f"{getattr(manifest, name):>12,} {name.replace('_', ' ')}")
    click.echo(f"{manifest.envelopes:>12,} messages, in {output}")


def _print_bad_rows(suppression: "Suppression") -> None:
    for row in suppression.bad_rows:
        click.secho(f"ignored: {row}", fg="yellow", err=True)
    more = suppression.bad - len(suppression.bad_rows)
    if more > 0:
        click.echo(f"… and {more} more rows", err=True)


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
    from zonemta_py.pipeline.plan.segment import SegmentRequest, make_segments

    day = clock.utc(clock.now_ms()).date() if as_of is None else as_of.date()
    policy = EngagementPolicy(day, active_days, sunset_days, new_days)
    for path in (options["engagement"], options["source"]):
        require_list(path)
    with spark.job() as (session, progress):
        counts = make_segments(session, SegmentRequest(policy=policy, **options), progress)
    if as_json:
        print_json(asdict(counts))
    else:
        _print_segments(counts, options["output"])


def _print_segments(counts: "SegmentCounts", output: str) -> None:
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
