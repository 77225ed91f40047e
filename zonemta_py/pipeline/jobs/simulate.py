"""What a load would do under other settings: every combination played at once, one task for each zone of each.

The load is a plan's or what the events say was accepted; how peers answer is taken from events.
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
from zonemta_py.pipeline.rules.scenarios import Scenario
from zonemta_py.pipeline.rules.simulation import LIMITS, SHARES, Parcel, Peer, simulate
from zonemta_py.pipeline.spark import schema
from zonemta_py.pipeline.spark.arrow import batch_of
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.events import read_events
from zonemta_py.pipeline.transforms.load import answers, peer_of, planned_load, recorded_load

COUNTS = ("delivered", "bounced", "expired", "deferrals", "transactions", "backlog_peak")
TIMES = ("completed_s", *(f"p{round(100 * share)}_s" for share in SHARES), *(f"limited_by_{name}_s" for name in LIMITS))  # fmt: skip
PREDICTION = StructType(
    [StructField("scenario", IntegerType()), StructField("settings", StringType()), StructField("zone", StringType())]
    + [StructField(name, LongType()) for name in COUNTS]
    + [StructField(name, DoubleType()) for name in TIMES]
    + [StructField("backlog_by_minute", ArrayType(LongType()))]
)  # fmt: skip

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to play. ``events`` tell how peers answer, and without ``plan`` what the load was.

    ``per_s``: recipients a second at which a plan is submitted; ``most_per_s``: transactions a second that the
    relay manages at most. ``output``: a folder for the rows, or None.
    """

    events: str
    scenarios: Sequence[Scenario]
    plan: str | None = None
    per_s: float | None = None
    most_per_s: float | None = None
    output: str | None = None
    seed: int = 0


def run(spark: SparkSession, request: Request, step: Step) -> list[dict[str, Any]]:
    """A row of PREDICTION for each zone of each scenario. Raises LocalError."""
    events = read_events(spark, request.events)
    with told(request.events):
        step("learning how peers answer")
        usual, peers = _peers(events, request.events)
        step(f"playing {len(request.scenarios)} scenarios")
        load = _load(spark, request, events)
        numbers = spark.createDataFrame([(each.number,) for each in request.scenarios], "scenario int")
        rows = (
            load.crossJoin(F.broadcast(numbers))
            .groupBy("scenario", "zone")
            .applyInArrow(_playing(request, usual, peers), PREDICTION)
        )
        if request.output is not None:
            rows.write.parquet(request.output)
            rows = spark.read.parquet(request.output)
        found = [row.asDict() for row in rows.orderBy("scenario", "zone").collect()]
    if not found:
        raise LocalError(f"{request.plan or request.events}: there is no mail to play")
    return found


def _peers(events: DataFrame, place: str) -> tuple[Peer, dict[str, Peer]]:
    rows = [row.asDict() for row in events.transform(answers).collect()]
    if not rows or not rows[0]["attempts"]:
        raise LocalError(
            f"{place}: no delivery was attempted in these events: nobody knows how peers answer"
        )
    return peer_of(rows[0]), {row["domain"]: peer_of(row) for row in rows[1:]}


def _load(spark: SparkSession, request: Request, events: DataFrame) -> DataFrame:
    if request.plan is None:
        return events.transform(recorded_load)
    manifest = read_manifest(spark, request.plan)
    envelopes = spark.read.schema(schema.ENVELOPE).parquet(f"{request.plan}/envelopes")
    return envelopes.transform(planned_load(manifest.planned, request.per_s))


def _playing(
    request: Request, usual: Peer, peers: dict[str, Peer]
) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    zones = {
        (each.number, name): zone
        for each in request.scenarios
        for name, zone in each.config.zones.items()
    }
    settings = {
        each.number: " ".join(f"{k}={v}" for k, v in each.settings) for each in request.scenarios
    }
    most_per_s, seed = request.most_per_s, request.seed

    def play(key: tuple[Any, ...], table: pa.Table) -> pa.Table:
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
        parcels = (Parcel(ms / 1000, to, count) for ms, to, count in zip(*columns, strict=True))
        found = simulate(zone, parcels, peers, usual, most_per_s, seed)
        quantiles = (*found.quantiles_s, *([None] * (len(SHARES) - len(found.quantiles_s))))
        row = (
            scenario, settings[scenario], name, *(getattr(found, each) for each in COUNTS),
            found.completed_s, *quantiles, *(found.limited_s[each] for each in LIMITS), found.backlog,
        )  # fmt: skip
        return pa.Table.from_batches([batch_of([row], PREDICTION)])

    return play
