"""Normalises the address of every row of a list, or says why it is rejected.

The rule is the relay's own (``smtp.address``), so an address that passes here is not rejected there. An address
of the most common form is recognised by Arrow; only the others go through Python, and each domain once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.spark.lists import POSITION
from zonemta_py.routing import Router
from zonemta_py.smtp.address import AddressError, normalise
from zonemta_py.submit.recipients import BLANKS

# A normalised address already, if it has at most PLAIN_MAX characters: then its parts have not too many either.
_ATOM, _LABEL = r"[A-Za-z0-9_+=\-]+", r"[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?"
PLAIN = rf"\A{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})+\z"
PLAIN_MAX = 64

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
            missing = batch.column("missing") if merge_fields else None
            columns = checker.check(batch.column("given"), missing)
            fields = [batch.column("fields")] if merge_fields else []
            yield pa.RecordBatch.from_arrays(
                [batch.column("position"), *columns, *fields], names=schema.names
            )

    def transform(rows: DataFrame) -> DataFrame:
        given = F.btrim(F.coalesce(F.col(f"`{email}`").cast("string"), F.lit("")), F.lit(BLANKS))
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

    def check(self, given: pa.StringArray, missing: pa.StringArray | None = None) -> list[pa.Array]:
        """The columns CHECKED of ``given``, whose own is null where it equals the address.

        ``missing``: for each row the name of a merge field without a value, or null.
        """
        is_plain = pc.and_(
            pc.match_substring_regex(given, PLAIN), pc.less_equal(pc.utf8_length(given), PLAIN_MAX)
        )
        if missing is not None:
            is_plain = pc.and_(is_plain, pc.is_null(missing))
        is_other = pc.invert(is_plain)
        names = None if missing is None else missing.filter(is_other).to_pylist()
        texts, found, reasons = _checked(given.filter(is_other).to_pylist(), names)
        addresses = pc.replace_with_mask(given, is_other, pa.array(found, pa.string()))
        nulls = pa.nulls(len(given), pa.string())
        return [
            pc.replace_with_mask(nulls, is_other, pa.array(texts, pa.string())),
            addresses,
            *self._providers_and_zones(addresses),
            pc.replace_with_mask(nulls, is_other, pa.array(reasons, pa.string())),
        ]

    def _providers_and_zones(self, addresses: pa.StringArray) -> list[pa.Array]:
        """Provider and zone of each address, from Python once for each domain."""
        domains = pc.replace_substring_regex(addresses, ".*@", "").dictionary_encode()
        pairs = [self._provider_and_zone(domain) for domain in domains.dictionary.to_pylist()]
        return [
            pa.array([pair[part] for pair in pairs], pa.string()).take(domains.indices)
            for part in (0, 1)
        ]

    def _provider_and_zone(self, domain: str) -> tuple[str, str]:
        found = self._domains.get(domain)
        if found is None:
            found = provider_of(domain), self.router.route(domain, self.sender_domain, "", {})
            self._domains[domain] = found
        return found


def _checked(
    texts: Sequence[str], missing: Sequence[str | None] | None
) -> tuple[list[str | None], list[str | None], list[str | None]]:
    """Three columns: each text, or None if it is the address; the address, or None; the reason, or None."""
    given: list[str | None] = []
    addresses: list[str | None] = []
    reasons: list[str | None] = []
    for text, name in zip(texts, missing or repeat(None, len(texts)), strict=True):
        address, reason = _address_of(text)
        if address is not None and name is not None:
            address, reason = None, f"no value for '{name}'"
        given.append(None if text == address else text[:CELL_MAX])
        addresses.append(address)
        reasons.append(reason)
    return given, addresses, reasons


def _address_of(text: str) -> tuple[str | None, str | None]:
    if UNDECODED in text:
        return None, "not valid UTF-8"
    try:
        return normalise(text), None
    except AddressError as exc:
        return None, str(exc) if text else "no address"
