"""Every row of a list with its normalised address, or with the reason why it has none.

The rule is the relay's own (``smtp.address``), so what passes here is not refused there. Only the
address passes through Python; everything else of a row stays in Arrow.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.routing import Router
from zonemta_py.smtp.address import AddressError, domain_of, normalise

CELL_MAX = 1000  # characters of a cell that is no address, kept for who looks into it

UNDECODED = "\ufffd"  # what a reader makes of octets that are no UTF-8
JUDGED = ("given", "address", "provider", "zone", "reason")
_STRING = StringType()
FIELDS = StructField("fields", MapType(_STRING, _STRING))
NORMALISED = StructType(
    [StructField("position", LongType()), *(StructField(name, _STRING) for name in JUDGED)]
)


def normalised(
    email: str, merge_fields: Sequence[str], router: Router, sender_domain: str
) -> Callable[[DataFrame], DataFrame]:
    """Columns of NORMALISED, and FIELDS where there are ``merge_fields``, from a list with POSITION and the address in ``email``.

    ``merge_fields``: the columns that the message needs, each of which must have a value.
    """
    carried = [FIELDS] if merge_fields else []
    after = StructType([*NORMALISED, *carried])

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places: dict[str, tuple[str, str]] = {}
        for batch in batches:
            texts = batch.column("given").to_pylist()
            missing = batch.column("missing").to_pylist() if merge_fields else []
            judged = _judged(texts, missing, places, router, sender_domain)
            columns = [pa.array(values, pa.string()) for values in judged]
            fields = [batch.column("fields")] if merge_fields else []
            yield pa.RecordBatch.from_arrays(
                [batch.column("position"), *columns, *fields], names=after.names
            )

    def transform(rows: DataFrame) -> DataFrame:
        given = F.trim(F.coalesce(F.col(f"`{email}`").cast("string"), F.lit("")))
        columns = [F.col(f"`{POSITION}`").alias("position"), given.alias("given")]
        if merge_fields:
            columns += [
                _fields(merge_fields).alias("fields"),
                F.coalesce(*_missing(merge_fields)).alias("missing"),
            ]
        return rows.select(*columns).mapInArrow(judge, after)

    return transform


def _fields(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), F.col(f"`{name}`").cast("string"))]
    return F.create_map(*pairs).cast("map<string,string>")


def _missing(names: Sequence[str]) -> list[Column]:
    """The name of the first column that has no value, else null."""
    return [F.when(F.col(f"`{name}`").isNull(), F.lit(name)) for name in names]


def _judged(
    texts: Sequence[str],
    missing: Sequence[str | None],
    places: dict[str, tuple[str, str]],
    router: Router,
    sender_domain: str,
) -> list[Sequence[str | None]]:
    """JUDGED of many rows, by column; ``given`` is null where it is the address.

    ``missing``: the name of a merge field without a value for each row, or nothing at all.
    ``places``: provider and zone of the domains so far. By column, because a million short tuples cost
    more than what is in them.
    """
    addresses: list[str | None] = []
    reasons: list[str | None] = [None] * len(texts)
    for row, text in enumerate(texts):
        try:
            addresses.append(normalise(text))
        except AddressError as exc:
            addresses.append(None)
            reasons[row] = str(exc) if text else "no address"
        if UNDECODED in text:
            addresses[row], reasons[row] = None, "not valid UTF-8"
    for row, lacks in enumerate(missing):
        if lacks is not None and addresses[row] is not None:
            addresses[row], reasons[row] = None, f"no value for '{lacks}'"
    domains = [None if address is None else domain_of(address) for address in addresses]
    for domain in set(domains):
        if domain is not None and domain not in places:
            places[domain] = provider_of(domain), router.route(domain, sender_domain, "", {})
    found = [None if domain is None else places[domain] for domain in domains]
    return [
        [None if text == address else text[:CELL_MAX] for text, address in zip(texts, addresses, strict=True)],
        addresses,
        [place and place[0] for place in found],
        [place and place[1] for place in found],
        reasons,
    ]  # fmt: skip
