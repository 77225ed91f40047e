"""Simulates the delivery of a load under other settings: one task for each scenario.

The load comes from a plan, or from the accepted events; the model of the peers comes from events.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
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

from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.core.model import PathKey
from zonemta_py.pipeline.rules.prediction import (
    LIMITS,
    SHARES,
    PathLimits,
    PathUse,
    Prediction,
    SimulatedMessage,
)
from zonemta_py.pipeline.rules.scenarios import ConfigScenario
from zonemta_py.pipeline.rules.simulated_egress import RecordedDomain
from zonemta_py.pipeline.rules.simulated_world import PeerModels
from zonemta_py.pipeline.rules.simulation import SimulatedLoad, SimulatedRelay, simulate
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.output_lock import locks_output
from zonemta_py.pipeline.spark.plan_manifest import read_manifest
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.rows_output import RowsOutput
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.transforms.load import peer_answers, peer_model, planned_load, recorded_load
from zonemta_py.pipeline.transforms.recorded_replies import (
    domain_map,
    recorded_domains,
    recorded_replies,
    reply_models,
)
from zonemta_py.schedule.warmup import EPOCH

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
    """What the events say of how others answer, and of their domains."""

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
