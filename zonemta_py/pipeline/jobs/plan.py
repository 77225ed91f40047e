"""From a list to a frozen plan: who gets the message, in which envelopes, in which order.

The list is judged once and written down, and everything else is made of that: a second look at it
could see another order, or another list.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from zonemta_py.config.schema import Config
from zonemta_py.core import clock
from zonemta_py.core.errors import LocalError
from zonemta_py.pipeline.rules.suppression import Suppression
from zonemta_py.pipeline.spark import schema
from zonemta_py.pipeline.spark.errors import told
from zonemta_py.pipeline.spark.lists import POSITION, address_column, read_list
from zonemta_py.pipeline.transforms.classify import DUPLICATE, PLANNED, REJECTED, SUPPRESSED, classified
from zonemta_py.pipeline.transforms.normalise import normalised
from zonemta_py.pipeline.transforms.pack import packed
from zonemta_py.routing import make_router
from zonemta_py.smtp.address import domain_of
from zonemta_py.submit.merge import Template

VERSION = 1
BROADCAST_MAX = 1_000_000  # entries of a suppression list that every task keeps in memory
WORK = "_judged"  # deleted when the plan is there, where that is a plain folder

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to plan. ``place`` is the list, ``output`` a folder that does not exist yet."""

    place: str
    output: str
    campaign: str
    sender: str
    message: bytes
    config: Config
    suppression: Suppression
    email_column: str | None = None
    per_envelope: int = 50
    slots: int = 16
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a plan says of itself; ``schema.MANIFEST``."""

    version: int
    campaign: str
    sender: str
    personal: bool
    slots: int
    made_ms: int
    input: int
    planned: int
    rejected: int
    duplicate: int
    suppressed: int
    envelopes: int


def make_plan(spark: SparkSession, request: Request, step: Step) -> Manifest:
    """Make the plan and write it. Raises LocalError, and then there is no plan.

    ``step`` is told what begins.
    """
    if _exists(spark, request.output):
        raise LocalError(f"{request.output}: there is a plan already; choose another folder")
    template = Template(request.message)
    rows = read_list(spark, request.place, request.options)
    columns = [name for name in rows.columns if name != POSITION]
    email = address_column(columns, request.email_column, request.place)
    merge_fields = [name.decode("utf-8", "replace") for name in template.fields]
    missing = [name for name in merge_fields if name not in columns]
    if missing:
        raise LocalError(
            f"{request.place}: the message needs the column {', '.join(missing)}; "
            f"columns: {', '.join(columns)}"
        )
    if rows.isEmpty():
        raise LocalError(f"{request.place}: the list is empty")
    judged, read = _judge(spark, request, rows, email, merge_fields, step)
    sizes = judged.groupBy("kind", "provider").agg(F.count("*").alias("size")).persist()
    counted = sizes.groupBy("kind").agg(F.sum("size").alias("count")).collect()
    counts = {row["kind"]: row["count"] for row in counted}
    envelopes = _write_envelopes(spark, request, judged, sizes, template, step)
    sizes.unpersist()
    sums = {kind: counts.get(kind, 0) for kind in (PLANNED, REJECTED, DUPLICATE, SUPPRESSED)}
    written = envelopes.agg(
        F.count("*").alias("envelopes"), F.coalesce(F.sum(F.size("recipients")), F.lit(0)).alias("recipients")
    ).collect()[0]  # fmt: skip
    if read != sum(sums.values()):
        read = rows.count()  # a stage that ran twice was counted twice while it was read
    if sum(sums.values()) != read or written["recipients"] != sums[PLANNED]:
        raise LocalError(
            f"the sums are wrong: {read} rows read, {sums} made of them, "
            f"{written['recipients']} recipients written"
        )
    manifest = Manifest(
        version=VERSION,
        campaign=request.campaign,
        sender=request.sender,
        personal=template.personal,
        slots=request.slots,
        made_ms=clock.now_ms(),
        input=read,
        envelopes=written["envelopes"],
        **sums,
    )
    if "://" not in request.output:
        shutil.rmtree(f"{request.output}/{WORK}")
    _write_row(spark, f"{request.output}/message", (request.message,), schema.MESSAGE)
    values = tuple(getattr(manifest, name) for name in schema.MANIFEST.names)
    _write_row(spark, f"{request.output}/manifest", values, schema.MANIFEST)
    return manifest


def _judge(
    spark: SparkSession,
    request: Request,
    rows: DataFrame,
    email: str,
    merge_fields: Sequence[str],
    step: Step,
) -> tuple[DataFrame, int]:
    """Every row with its kind, written down; and how many were read."""
    step("reading and checking the list")
    seen = Observation("list")
    suppression = None
    if request.suppression.entries:
        entries = list(request.suppression.entries.items())
        suppression = spark.createDataFrame(entries, "entry string, reason string")
        if len(entries) <= BROADCAST_MAX:
            suppression = F.broadcast(suppression)
    router = make_router(request.config)
    place = f"{request.output}/{WORK}"
    with told(request.place):
        (
            rows.observe(seen, F.count(F.lit(1)).alias("rows"))
            .transform(normalised(email, merge_fields, router, domain_of(request.sender)))
            .transform(classified(suppression))
            .write.option("compression", "lz4")
            .option("parquet.enable.dictionary#address", "false")  # no two are alike
            .parquet(place)
        )
    return spark.read.parquet(place), int(seen.get["rows"])


def _write_envelopes(
    spark: SparkSession,
    request: Request,
    judged: DataFrame,
    sizes: DataFrame,
    template: Template,
    step: Step,
) -> DataFrame:
    step("packing envelopes")
    providers = sizes.where(F.col("kind") == PLANNED).select("provider", "size")
    place = f"{request.output}/envelopes"
    (
        judged.where(F.col("kind") == PLANNED)
        .transform(
            packed(
                request.campaign,
                request.slots,
                None if template.personal else request.per_envelope,
                providers,
            )
        )
        .repartition(request.slots, "slot")
        .sortWithinPartitions("slot", "turn")
        .write.parquet(place)
    )
    step("writing what was left out")
    judged.where(F.col("kind") != PLANNED).select(
        "kind", F.coalesce("given", "address").alias("address"), F.col("why").alias("reason")
    ).write.parquet(f"{request.output}/left_out")
    return spark.read.schema(schema.ENVELOPE).parquet(place)


def _write_row(spark: SparkSession, place: str, row: tuple[Any, ...], kind: StructType) -> None:
    spark.createDataFrame([row], kind).coalesce(1).write.parquet(place)


def read_manifest(spark: SparkSession, plan: str) -> Manifest:
    """The manifest of ``plan``. Raises LocalError when there is none."""
    try:
        row = spark.read.schema(schema.MANIFEST).parquet(f"{plan}/manifest").collect()[0]
    except (AnalysisException, IndexError) as exc:
        raise LocalError(f"{plan}: there is no plan here; make one with: zonemta pipeline plan") from exc
    if row["version"] != VERSION:
        raise LocalError(f"{plan}: a plan of version {row['version']}, this version reads {VERSION}")
    return Manifest(**row.asDict())


def read_message(spark: SparkSession, plan: str) -> bytes:
    """The message of a plan."""
    octets: bytearray = (
        spark.read.schema(schema.MESSAGE).parquet(f"{plan}/message").collect()[0]["octets"]
    )
    return bytes(octets)


def _exists(spark: SparkSession, place: str) -> bool:
    if "://" not in place:
        return Path(place).exists()
    try:
        spark.read.parquet(f"{place}/manifest").limit(1).collect()
    except AnalysisException:
        return False
    return True
