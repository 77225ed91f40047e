"""Every row of a list with its normalised address, or with the reason why it has none.

The rule is the relay's own (``smtp.address``), so what passes here is not refused there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.arrow import batch_of
from zonemta_py.pipeline.provider import provider_of
from zonemta_py.routing import Router
from zonemta_py.smtp.address import AddressError, domain_of, normalise

CELL_MAX = 1000  # characters of a cell that is no address, kept for who looks into it

NORMALISED = StructType(
    [
        StructField("position", LongType()),
        StructField("given", StringType()),
        StructField("address", StringType()),
        StructField("domain", StringType()),
        StructField("provider", StringType()),
        StructField("zone", StringType()),
        StructField("reason", StringType()),
        StructField("fields", MapType(StringType(), StringType())),
    ]
)


def normalised(
    email: str, merge_fields: Sequence[str], router: Router, sender_domain: str
) -> Callable[[DataFrame], DataFrame]:
    """Columns of NORMALISED from a list with the address in ``email``.

    ``merge_fields``: the columns that the message needs, each of which must have a value.
    """

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        zones: dict[str, str] = {}
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in merge_fields]
            rows = [
                _judged(position, text, dict(zip(merge_fields, values, strict=True)), router, sender_domain, zones)
                for position, text, *values in zip(
                    batch.column("position").to_pylist(), batch.column("given").to_pylist(), *columns,
                    strict=True,
                )
            ]  # fmt: skip
            yield batch_of(rows, NORMALISED)

    def transform(rows: DataFrame) -> DataFrame:
        return rows.select(
            F.monotonically_increasing_id().alias("position"),
            F.col(f"`{email}`").cast("string").alias("given"),
            *(F.col(f"`{name}`").cast("string").alias(name) for name in merge_fields),
        ).mapInArrow(judge, NORMALISED)

    return transform


def _judged(
    position: int,
    given: str | None,
    fields: Mapping[str, str | None],
    router: Router,
    sender_domain: str,
    zones: dict[str, str],
) -> tuple[object, ...]:
    """One row of NORMALISED."""
    text = (given or "").strip()
    reason, address = "", ""
    if not text:
        reason = "no address"
    elif "\ufffd" in text:
        reason = "not valid UTF-8"
    else:
        try:
            address = normalise(text)
        except AddressError as exc:
            reason = str(exc)
    missing = next((name for name, value in fields.items() if value is None), None)
    if address and missing is not None:
        reason, address = f"no value for '{missing}'", ""
    if not address:
        return position, text[:CELL_MAX], None, None, None, None, reason, None
    domain = domain_of(address)
    zone = zones.get(domain)
    if zone is None:
        zone = zones[domain] = router.route(domain, sender_domain, "", {})
    values = list(fields.items())
    return position, given, address, domain, provider_of(domain), zone, None, values
