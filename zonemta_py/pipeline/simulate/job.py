"""Simulates the delivery of a load under other settings: one task for each scenario.

The load comes from a plan, or from the accepted events; the model of the peers comes from events.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from zonemta_py.config.load import parse_config, with_key
from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.egress import read_egress
from zonemta_py.egress.warmup import EPOCH
from zonemta_py.pipeline.events.log import EventLog
from zonemta_py.pipeline.events.rows import ATTEMPTS, read_events
from zonemta_py.pipeline.plan.pack import TURNS
from zonemta_py.pipeline.plan.request import read_manifest
from zonemta_py.pipeline.simulate.egress import RecordedDomain, SendingSettings
from zonemta_py.pipeline.simulate.prediction import (
    ATTEMPTS_MAX,
    LIMITS,
    SHARES,
    PathLimits,
    PathUse,
    PeerModel,
    Prediction,
    SimulatedMessage,
)
from zonemta_py.pipeline.simulate.recorded import (
    domain_map,
    is_of_sender,
    recorded_domains,
    recorded_replies,
    reply_models,
)
from zonemta_py.pipeline.simulate.world import PeerModels
from zonemta_py.pipeline.simulate.zone import SimulatedLoad, SimulatedRelay, simulate
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.output import RowsOutput, locks_output
from zonemta_py.pipeline.spark.session import spark_errors
from zonemta_py.pipeline.spark.tables import Progress, record_batch

# ---- Scenarios of a simulation: one configuration, and every combination of values for some of its keys. Pure.

SCENARIOS_MAX = 1000


@dataclass(frozen=True, slots=True)
class ConfigScenario:
    """``settings``: the changed keys and their values as text; ``config``: the configuration with them.

    ``sending``: what it and its files say of providers, shaping and warm-up.
    """

    number: int
    settings: tuple[tuple[str, str], ...]
    config: Config
    sending: SendingSettings


def scenarios(text: str, path: Path, changes: Sequence[str]) -> list[ConfigScenario]:
    """Every combination of ``changes``, each like ``zones.default.connections=10,20``.

    A value in brackets is one value. Raises ConfigError, also for a combination that is not valid.
    """
    choices = [_values(change) for change in changes]
    names = [name for name, _ in choices]
    combinations = list(product(*(values for _, values in choices)))
    if len(combinations) > SCENARIOS_MAX:
        raise ConfigError(f"too many combinations ({len(combinations)}); the limit is {SCENARIOS_MAX}")
    return [
        _scenario(text, path, number, tuple(zip(names, chosen, strict=True)))
        for number, chosen in enumerate(combinations)
    ]


def _values(change: str) -> tuple[str, list[str]]:
    name, separator, text = change.partition("=")
    if not separator or not name or not text:
        raise ConfigError(f"--set '{change}': expected KEY=VALUE or KEY=VALUE,VALUE,…")
    one = text.startswith(("[", "{"))
    values = [text] if one else [each.strip() for each in text.split(",")]
    if "" in values:
        raise ConfigError(f"--set '{change}': found an empty value, expected KEY=VALUE,VALUE,…")
    return name, values


def _scenario(
    text: str, path: Path, number: int, settings: tuple[tuple[str, str], ...]
) -> ConfigScenario:
    for name, value in settings:
        text = with_key(text, path, name, value)
    try:
        config = parse_config(text, path)
        sending = _sending(config)
    except ConfigError as exc:
        chosen = " ".join(f"{name}={value}" for name, value in settings)
        raise ConfigError(f"with {chosen}: {exc}" if chosen else str(exc)) from exc
    return ConfigScenario(number, settings, config, sending)


def _sending(config: Config) -> SendingSettings:
    files = read_egress(config)
    return SendingSettings(
        files.table.providers,
        files.rules.rules,
        files.schedules,
        config.shaping.controller,
        config.pools,
    )


# ---- The input of a simulation: the load, from a plan or from events, and how peers answered.
#
# A load has the columns ``zone``, ``arrival_ms``, ``destination`` and ``recipients``.

TIME_QUANTILES = 40  # quantiles of the time of a transaction
PEERS_MAX = 2000  # destinations with a model of their own
ACCURACY = 10_000  # of quantiles: an error of 1/ACCURACY of the rank

Transform = Callable[[DataFrame], DataFrame]


def planned_load(recipients: int, per_s: float | None) -> Transform:
    """The load from a plan's envelopes, submitted at ``per_s`` recipients per second; None: all at once."""
    whole_ms = 1000 * recipients / per_s if per_s else 0.0

    def transform(envelopes: DataFrame) -> DataFrame:
        each = envelopes.select("key", "zone", "turn", F.explode("recipients.address").alias("address"))
        return (
            each.groupBy("key", "zone", "turn", _domain("address").alias("destination"))
            .agg(F.count("*").alias("recipients"))
            .select(
                "zone",
                (F.greatest("turn", F.lit(0)) / TURNS * whole_ms).cast("long").alias("arrival_ms"),
                "destination",
                F.col("recipients").cast("int").alias("recipients"),
            )
        )

    return transform


def recorded_load(events: DataFrame) -> DataFrame:
    """The load from ``accepted`` events, at their times."""
    recipients = F.from_json("recipients", "array<struct<recipient:string,zone:string>>")
    each = events.where(F.col("event") == "accepted").select("message", "time_ms", F.inline(recipients))
    return (
        each.groupBy("message", "time_ms", "zone", _domain("recipient").alias("destination"))
        .agg(F.count("*").alias("recipients"))
        .select("zone", F.col("time_ms").alias("arrival_ms"), "destination", F.col("recipients").cast("int").alias("recipients"))
    )  # fmt: skip


def _domain(address: str) -> Column:
    return F.substring_index(address, "@", -1)


def peer_answers(events: DataFrame) -> DataFrame:
    """How each domain, and first all together (``domain`` null), answered: times, and counts by attempt.

    Attempts whose reply spoke of the sender are not in the counts: ``recorded_replies`` has those.
    """
    nth = F.when(~is_of_sender(), F.least("attempt", F.lit(ATTEMPTS_MAX)))
    attempts = events.where(F.col("event").isin(*ATTEMPTS)).select(
        "domain", "event", "duration_ms", nth.alias("nth")
    )
    ranks = [(n + 0.5) / TIME_QUANTILES for n in range(TIME_QUANTILES)]
    counts = [
        count
        for nth in range(1, ATTEMPTS_MAX + 1)
        for count in (
            F.count_if(F.col("nth") == nth).alias(f"made_{nth}"),
            F.count_if((F.col("nth") == nth) & (F.col("event") == "deferred")).alias(f"deferred_{nth}"),
            F.count_if((F.col("nth") == nth) & (F.col("event") == "bounced")).alias(f"bounced_{nth}"),
        )
    ]
    return (
        attempts.rollup("domain")
        .agg(
            F.grouping("domain").alias("together"),
            F.count("*").alias("attempts"),
            F.percentile_approx("duration_ms", ranks, ACCURACY).alias("times_ms"),
            *counts,
        )
        .orderBy(F.desc("together"), F.desc("attempts"), "domain")
        .limit(PEERS_MAX + 1)
    )


def peer_model(row: Mapping[str, object]) -> PeerModel:
    """The model from a row of ``peer_answers``; an attempt without data has the shares of the one before it."""
    deferred: list[float] = []
    bounced: list[float] = []
    for nth in range(1, ATTEMPTS_MAX + 1):
        made = int(str(row[f"made_{nth}"]))
        for shares, name in ((deferred, "deferred"), (bounced, "bounced")):
            before = shares[-1] if shares else 0.0
            shares.append(int(str(row[f"{name}_{nth}"])) / made if made else before)
    times = row["times_ms"]
    assert isinstance(times, list)
    return PeerModel([ms / 1000 for ms in times], deferred, bounced)


# ---- simulate

COUNTS = ("delivered", "bounced", "expired", "held", "deferrals", "transactions", "backlog_peak")
TIMES = ("completed_s", *(f"p{round(100 * share)}_s" for share in SHARES), *(f"limited_by_{name}_s" for name in LIMITS))  # fmt: skip
PATHS_MAX = 200  # of a zone: those that a limit bound, then those with the most recipients
CHANGE = StructType([StructField("time_ms", LongType())] + [StructField(name, StringType()) for name in ("what", "from", "to", "cause")])  # fmt: skip
PATH = StructType(
    [StructField(name, StringType()) for name in ("provider", "address")]
    + [StructField(name, LongType()) for name in ("transactions", "recipients", "refused", "minute_max")]
    + [StructField(name, DoubleType()) for name in ("per_s", "wait_max_s")]
    + [
        StructField("by_day", MapType(StringType(), LongType())),
        StructField("limited_s", MapType(StringType(), DoubleType())),
        StructField("changes", ArrayType(CHANGE)),
    ]
)  # fmt: skip
PREDICTION = StructType(
    [StructField("scenario", IntegerType()), StructField("settings", StringType()), StructField("zone", StringType())]
    + [StructField(name, LongType()) for name in COUNTS]
    + [StructField(name, DoubleType()) for name in TIMES]
    + [StructField("backlog_by_minute", ArrayType(LongType())), StructField("paths", ArrayType(PATH))]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """``events``: the source of the model of the peers, and without ``plan`` of the load.

    ``per_s``: recipients per second at which the plan is submitted; None: all at once. ``relay_limit_per_s``: the
    maximum of transactions per second that the relay itself can do, or None. ``begins_ms``: when the mail begins (unix
    ms), for schedules of days; None: when it did, a plan now. ``output``: see ``RowsOutput``.
    """

    log: EventLog
    scenarios: Sequence[ConfigScenario]
    plan: str | None = None
    per_s: float | None = None
    relay_limit_per_s: float | None = None
    begins_ms: int | None = None
    output: str | None = None
    overwrite: bool = False
    seed: int = 0


class Recorded(NamedTuple):
    """Recorded peers, as events show their replies, and their domains."""

    peers: PeerModels
    domains: Mapping[str, RecordedDomain]


@locks_output
def simulate_scenarios(
    spark: SparkSession, request: SimulateRequest, progress: Progress
) -> list[dict[str, Any]]:
    """A row of PREDICTION for each zone of each scenario. Raises LocalError."""
    output = RowsOutput(spark, request.output, overwrite=request.overwrite)
    events = read_events(spark, request.log)
    with spark_errors(request.log.path):
        progress("computing the model of the peers")
        recorded = _recorded(events, request.log.path)
        progress(f"simulating {len(request.scenarios)} scenarios")
        load = _load(spark, request, events)
        numbers = spark.createDataFrame([(each.number,) for each in request.scenarios], "scenario int")
        rows = (
            load.crossJoin(F.broadcast(numbers))
            .groupBy("scenario")
            .applyInArrow(_simulate_scenario(request, recorded), PREDICTION)
        )
        found = [row.asDict() for row in output.written(rows).orderBy("scenario", "zone").collect()]
    output.keep_damage(request.log.damage)
    if not found:
        output.discard()
        raise LocalError(f"{request.plan or request.log.path}: there is no mail to simulate")
    return found


def _recorded(events: DataFrame, path: str) -> Recorded:
    """Raises LocalError without attempts."""
    rows = [row.asDict() for row in events.transform(peer_answers).collect()]
    if not rows or not rows[0]["attempts"]:
        raise LocalError(
            f"{path}: the events contain no attempt to deliver, so there is no model of the peers"
        )
    domains = events.transform(recorded_domains).collect()
    replies = reply_models(row.asDict() for row in events.transform(recorded_replies).collect())
    models = {row["domain"]: peer_model(row) for row in rows[1:]}
    peers = PeerModels(peer_model(rows[0]), models, replies)
    return Recorded(peers, domain_map(row.asDict() for row in domains))


def _load(spark: SparkSession, request: SimulateRequest, events: DataFrame) -> DataFrame:
    if request.plan is None:
        return events.transform(recorded_load)
    manifest = read_manifest(spark, request.plan)
    envelopes = spark.read.schema(tables.ENVELOPE).parquet(f"{request.plan}/envelopes")
    return envelopes.transform(planned_load(manifest.planned, request.per_s))


def _simulate_scenario(
    request: SimulateRequest, recorded: Recorded
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    scenarios = {each.number: each for each in request.scenarios}
    limit_per_s, seed = request.relay_limit_per_s, request.seed
    begins_ms = request.begins_ms
    if begins_ms is None and request.plan is not None:
        begins_ms = clock.now_ms()
    path = request.plan or request.log.path

    def simulate_scenario(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        scenario = scenarios[key[0].as_py()]
        ordered = table.sort_by(
            [("arrival_ms", "ascending"), ("zone", "ascending"), ("destination", "ascending")]
        )
        zones = scenario.config.zones
        for name in ordered.column("zone").unique().to_pylist():
            if name not in zones and "default" not in zones:
                raise LocalError(
                    f"{path}: there is mail for the zone '{name}', which is not in the configuration"
                )
        first_ms = ordered.column("arrival_ms")[0].as_py()
        found = simulate(
            SimulatedRelay(zones, scenario.sending, limit_per_s, seed),
            SimulatedLoad(
                _messages(ordered), recorded.peers, first_ms if begins_ms is None else begins_ms, recorded.domains
            ),
        )  # fmt: skip
        rows = [_row(scenario, name, each, found.paths) for name, each in found.zones.items()]
        return pa.Table.from_batches([record_batch(rows, PREDICTION)])

    return simulate_scenario


def _messages(table: pa.Table) -> Iterator[SimulatedMessage]:
    for batch in table.to_batches(max_chunksize=10_000):
        columns = (
            batch.column(each).to_pylist()
            for each in ("arrival_ms", "destination", "recipients", "zone")
        )
        for ms, destination, count, zone in zip(*columns, strict=True):
            yield SimulatedMessage(ms / 1000, destination, count, zone)


def _row(scenario: ConfigScenario, zone: str, result: Prediction, paths: PathLimits) -> tuple[Any, ...]:
    settings = " ".join(f"{key}={value}" for key, value in scenario.settings)
    quantiles = (*result.quantiles_s, *([None] * (len(SHARES) - len(result.quantiles_s))))
    return (
        scenario.number, settings, zone, *(getattr(result, each) for each in COUNTS),
        result.completed_s, *quantiles, *(result.limited_s[each] for each in LIMITS), result.backlog,
        _paths(result.paths, paths),
    )  # fmt: skip


def _paths(used: Mapping[PathKey, PathUse], paths: PathLimits) -> list[dict[str, Any]]:
    """Rows of PATH; limits and changes are those of all zones together."""
    providers = {provider for provider, _ in used}
    notable = {key for key in (*paths.limited_s, *paths.changes) if key[0] in providers}
    keys = sorted(
        {*used, *notable},
        key=lambda key: (key not in notable, -used[key].recipients if key in used else 0, key),
    )
    return [_path(key, used.get(key, PathUse()), paths) for key in keys[:PATHS_MAX]]


def _path(key: PathKey, use: PathUse, paths: PathLimits) -> dict[str, Any]:
    days = {str(date.fromordinal(EPOCH + day)): count for day, count in sorted(use.by_day.items())}
    return {
        "provider": key[0], "address": key[1], "transactions": use.transactions, "recipients": use.recipients,
        "refused": use.refused, "minute_max": use.minute_max, "per_s": use.per_s, "wait_max_s": use.wait_max_s,
        "by_day": days, "limited_s": paths.limited_s.get(key, {}),
        "changes": [
            {"time_ms": each.time_ms, "what": each.what, "from": each.before, "to": each.after, "cause": each.cause}
            for each in paths.changes.get(key, ())
        ],
    }  # fmt: skip
