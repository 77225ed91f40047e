"""Simulates the delivery of a load under other settings: one task for each zone of each scenario.

The load comes from a plan, or from the accepted events; the model of the peers comes from events.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.jobs.plan import read_manifest
from zonemta_py.pipeline.rules.prediction import LIMITS, SHARES, PeerModel, SimulatedMessage
from zonemta_py.pipeline.rules.scenarios import ConfigScenario
from zonemta_py.pipeline.rules.simulation import simulate
from zonemta_py.pipeline.spark import tables
from zonemta_py.pipeline.spark.event_log import EventLog
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.spark.exceptions import spark_errors
from zonemta_py.pipeline.spark.progress import Progress
from zonemta_py.pipeline.spark.tables import record_batch
from zonemta_py.pipeline.transforms.load import peer_answers, peer_model, planned_load, recorded_load

COUNTS = ("delivered", "bounced", "expired", "deferrals", "transactions", "backlog_peak")
TIMES = ("completed_s", *(f"p{round(100 * share)}_s" for share in SHARES), *(f"limited_by_{name}_s" for name in LIMITS))  # fmt: skip
PREDICTION = StructType(
    [StructField("scenario", IntegerType()), StructField("settings", StringType()), StructField("zone", StringType())]
    + [StructField(name, LongType()) for name in COUNTS]
    + [StructField(name, DoubleType()) for name in TIMES]
    + [StructField("backlog_by_minute", ArrayType(LongType()))]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """``events``: the source of the model of the peers, and without ``plan`` of the load.

    ``per_s``: recipients per second at which the plan is submitted; None: all at once. ``relay_limit_per_s``: the
    maximum of transactions per second that the relay itself can do, or None. ``output``: a directory, or None.
    """

    log: EventLog
    scenarios: Sequence[ConfigScenario]
    plan: str | None = None
    per_s: float | None = None
    relay_limit_per_s: float | None = None
    output: str | None = None
    seed: int = 0


def simulate_scenarios(
    spark: SparkSession, request: SimulateRequest, progress: Progress
) -> list[dict[str, Any]]:
    """A row of PREDICTION for each zone of each scenario. Raises LocalError."""
    events = read_events(spark, request.log)
    with spark_errors(request.log.path):
        progress("computing the model of the peers")
        default_peer, peers = _peers(events, request.log.path)
        progress(f"simulating {len(request.scenarios)} scenarios")
        load = _load(spark, request, events)
        numbers = spark.createDataFrame([(each.number,) for each in request.scenarios], "scenario int")
        rows = (
            load.crossJoin(F.broadcast(numbers))
            .groupBy("scenario", "zone")
            .applyInArrow(_simulate_groups(request, default_peer, peers), PREDICTION)
        )
        if request.output is not None:
            rows.write.parquet(request.output)
            rows = spark.read.parquet(request.output)
        found = [row.asDict() for row in rows.orderBy("scenario", "zone").collect()]
    if not found:
        raise LocalError(f"{request.plan or request.log.path}: there is no mail to simulate")
    return found


def _peers(events: DataFrame, path: str) -> tuple[PeerModel, dict[str, PeerModel]]:
    """The default model, and a model for each domain. Raises LocalError without attempts."""
    rows = [row.asDict() for row in events.transform(peer_answers).collect()]
    if not rows or not rows[0]["attempts"]:
        raise LocalError(
            f"{path}: the events contain no attempt to deliver, so there is no model of the peers"
        )
    return peer_model(rows[0]), {row["domain"]: peer_model(row) for row in rows[1:]}


def _load(spark: SparkSession, request: SimulateRequest, events: DataFrame) -> DataFrame:
    if request.plan is None:
        return events.transform(recorded_load)
    manifest = read_manifest(spark, request.plan)
    envelopes = spark.read.schema(tables.ENVELOPE).parquet(f"{request.plan}/envelopes")
    return envelopes.transform(planned_load(manifest.planned, request.per_s))


def _simulate_groups(
    request: SimulateRequest, default_peer: PeerModel, peers: dict[str, PeerModel]
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    zones = {
        (each.number, name): zone
        for each in request.scenarios
        for name, zone in each.config.zones.items()
    }
    settings = {
        each.number: " ".join(f"{k}={v}" for k, v in each.settings) for each in request.scenarios
    }
    limit_per_s, seed = request.relay_limit_per_s, request.seed

    def simulate_group(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
        scenario, name = (part.as_py() for part in key)
        zone = zones.get((scenario, name), zones.get((scenario, "default")))
        if zone is None:
            raise LocalError(
                f"the load has mail for the zone '{name}', which is not in the configuration"
            )
        ordered = table.sort_by([("arrival_ms", "ascending"), ("destination", "ascending")])
        columns = (
            ordered.column(each).to_pylist() for each in ("arrival_ms", "destination", "recipients")
        )
        messages = (
            SimulatedMessage(ms / 1000, destination, count)
            for ms, destination, count in zip(*columns, strict=True)
        )
        result = simulate(zone, messages, peers, default_peer, limit_per_s, seed)
        quantiles = (*result.quantiles_s, *([None] * (len(SHARES) - len(result.quantiles_s))))
        row = (
            scenario, settings[scenario], name, *(getattr(result, each) for each in COUNTS),
            result.completed_s, *quantiles, *(result.limited_s[each] for each in LIMITS), result.backlog,
        )  # fmt: skip
        return pa.Table.from_batches([record_batch([row], PREDICTION)])

    return simulate_group
