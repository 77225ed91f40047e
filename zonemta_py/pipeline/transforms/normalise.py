"""Normalises the address of every row of a list, or says why it is rejected.

The rule is the relay's own (``smtp.address``), so an address that passes here is not rejected there. Only
the address goes through Python; the other columns of a row stay in Arrow.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.routing import Router
from zonemta_py.smtp.address import AddressError, domain_of, normalise

CELL_MAX = 1000  # characters that are kept of a rejected cell

UNDECODED = "\ufffd"  # what a reader puts in place of bytes that are not UTF-8
CHECKED = ("given", "address", "provider", "zone", "reason")
_STRING = StringType()
FIELDS = StructField("fields", MapType(_STRING, _STRING))
NORMALISED = StructType(
    [StructField("position", LongType()), *(StructField(name, _STRING) for name in CHECKED)]
)


def normalise_rows(
    email: str, merge_fields: Sequence[str], router: Router, sender_domain: str
) -> Callable[[DataFrame], DataFrame]:
    """Rows of NORMALISED, with FIELDS if there are ``merge_fields``, from a list with POSITION.

    ``email``: the column of the address. ``merge_fields``: the columns that the message needs; a row without a
    value in one of them is rejected.
    """
    schema = StructType([*NORMALISED, *([FIELDS] if merge_fields else [])])

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checker = AddressChecker(router, sender_domain)
        for batch in batches:
            texts = batch.column("given").to_pylist()
            missing = batch.column("missing").to_pylist() if merge_fields else []
            columns = [pa.array(values, pa.string()) for values in checker.check(texts, missing)]
            fields = [batch.column("fields")] if merge_fields else []
            yield pa.RecordBatch.from_arrays(
                [batch.column("position"), *columns, *fields], names=schema.names
            )

    def transform(rows: DataFrame) -> DataFrame:
        given = F.trim(F.coalesce(F.col(f"`{email}`").cast("string"), F.lit("")))
        columns = [F.col(f"`{POSITION}`").alias("position"), given.alias("given")]
        if merge_fields:
            columns += [
                _fields(merge_fields).alias("fields"),
                F.coalesce(*_missing(merge_fields)).alias("missing"),
            ]
        return rows.select(*columns).mapInArrow(check, schema)

    return transform


def _fields(names: Sequence[str]) -> Column:
    pairs = [part for name in names for part in (F.lit(name), F.col(f"`{name}`").cast("string"))]
    return F.create_map(*pairs).cast("map<string,string>")


def _missing(names: Sequence[str]) -> list[Column]:
    """For each column its name where it has no value, else null."""
    return [F.when(F.col(f"`{name}`").isNull(), F.lit(name)) for name in names]


@dataclass(slots=True)
class AddressChecker:
    """Checks addresses batch by batch; remembers provider and zone of each domain."""

    router: Router
    sender_domain: str
    _domains: dict[str, tuple[str, str]] = field(default_factory=dict)

    def check(
        self, texts: Sequence[str], missing: Sequence[str | None] = ()
    ) -> list[Sequence[str | None]]:
        """The columns CHECKED of ``texts``; ``given`` is null where it equals the address.

        ``missing``: for each row the name of a merge field without a value, or None; or empty. By column,
        because a tuple for each of a million rows costs more time than the checks.
        """
        addresses, reasons = _normalised(texts)
        for row, name in enumerate(missing):
            if name is not None and addresses[row] is not None:
                addresses[row], reasons[row] = None, f"no value for '{name}'"
        domains = [None if address is None else domain_of(address) for address in addresses]
        for domain in set(domains):
            if domain is not None and domain not in self._domains:
                self._domains[domain] = self._provider_and_zone(domain)
        found = [None if domain is None else self._domains[domain] for domain in domains]
        return [
            [None if text == address else text[:CELL_MAX] for text, address in zip(texts, addresses, strict=True)],
            addresses,
            [pair and pair[0] for pair in found],
            [pair and pair[1] for pair in found],
            reasons,
        ]  # fmt: skip

    def _provider_and_zone(self, domain: str) -> tuple[str, str]:
        return provider_of(domain), self.router.route(domain, self.sender_domain, "", {})


def _normalised(texts: Sequence[str]) -> tuple[list[str | None], list[str | None]]:
    """The address of each text, or None, and the reason why it was rejected, or None."""
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
    return addresses, reasons
