"""The table of sums of attempts: its rows, how those of two parts of a log are added, and what is read from it.

A row belongs to one ``part``, has the keys of that part (KEYS) and counts; those of ``rates`` have the times to delivery, too, as a
histogram (``age_bucket``).
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ATTEMPTS = ("delivered", "deferred", "bounced", "expired")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BITS = 7  # of an age that are exact: buckets are at most 1/128 wide

_S, _I = pa.string(), pa.int64()
COUNTS = tuple((name, _I) for name in ATTEMPTS)
KEYS: Mapping[str, Mapping[str, pa.DataType]] = {
    "rates": {"dimension": _S, "value": _S},
    "domains": {"value": _S, "provider": _S},  # the provider that a domain has in events
    "hours": {"at_ms": _I, "zone": _S},
    "provider_hours": {"at_ms": _I, "provider": _S},
    "days": {"at_ms": _I, "address": _S, "provider": _S},
    "replies": {"at_ms": _I, "provider": _S, "event": _S, "phase": _S, "class": _S, "code": _S, "status": _S, "kind": _S},
}  # fmt: skip
SUMS = pa.schema(
    [
        ("part", _S), ("dimension", _S), ("value", _S), ("at_ms", _I), ("zone", _S), ("address", _S), ("provider", _S), ("event", _S),
        ("phase", _S), ("class", _S), ("code", _S), ("status", _S), ("kind", _S), ("example", _S), *COUNTS, ("count", _I),
        ("ages", pa.list_(_I)), ("age_counts", pa.list_(_I)),
    ]
)  # fmt: skip

Numbers = npt.NDArray[np.int64]


def age_bucket(ages_ms: Numbers) -> Numbers:
    """The number of the bucket of each age: of numbers with the same first BITS + 1 bits. Ages below 2^BITS have one of their own."""
    exponent = np.maximum(np.frexp(ages_ms.astype(np.float64))[1] - 1 - BITS, 0).astype(np.int64)
    bucket: Numbers = (exponent << BITS) + (ages_ms >> exponent)
    return bucket


def bucket_age_ms(buckets: Numbers) -> Numbers:
    """The middle of each bucket."""
    exponent = np.maximum((buckets >> BITS) - 1, 0)
    low = (buckets - (exponent << BITS)) << exponent
    middle: Numbers = low + ((1 << exponent) >> 1)
    return middle


def grouped_sums(part: str, rows: pa.Table) -> pa.Table:
    """Rows of ``part`` from rows with its keys and counts, those with the same keys added."""
    summed = rows.group_by(list(KEYS[part])).aggregate([(name, "sum") for name in ATTEMPTS])
    counts = {name: summed.column(f"{name}_sum") for name in ATTEMPTS}
    keys = {name: summed.column(name) for name in KEYS[part]}
    return as_sums(part, {**keys, **counts}, summed.num_rows)


def as_sums(part: str, columns: Mapping[str, pa.Array], rows: int) -> pa.Table:
    """``columns`` as rows of SUMS; the others are null."""
    named = {"part": pa.array([part], _S).take(pa.array(np.zeros(rows, dtype=np.int64))), **columns}
    return pa.table(
        [named[each.name] if each.name in named else pa.nulls(rows, each.type) for each in SUMS],
        schema=SUMS,
    )


def add_sums(sums: pa.Table) -> pa.Table:
    """Rows of SUMS, those with the same keys added."""
    found = []
    for part, keys in KEYS.items():
        rows = sums.filter(pc.equal(sums.column("part"), part))
        if not rows.num_rows:
            continue
        if part == "rates":
            found.append(add_rates(rows))
        elif part == "replies":
            summed = rows.group_by(list(keys)).aggregate([("count", "sum"), ("example", "min")])
            renamed = {"count": summed.column("count_sum"), "example": summed.column("example_min")}
            columns = {name: summed.column(name) for name in keys}
            found.append(as_sums(part, {**columns, **renamed}, summed.num_rows))
        else:
            found.append(grouped_sums(part, rows))
    return pa.concat_tables(found) if found else SUMS.empty_table()


def schema_of(parts: Collection[str]) -> pa.Schema:
    """The columns of SUMS that rows of ``parts`` by hour or day have."""
    names = {"part", *(name for part in parts for name in KEYS[part])}
    names |= {"count", "example"} if "replies" in parts else set()
    names |= set(ATTEMPTS) if set(parts) - {"replies"} else set()
    return pa.schema([each for each in SUMS if each.name in names])


def part_of(sums: pa.Table, part: str) -> pa.Table:
    """The rows of one part."""
    return sums.filter(pc.equal(sums.column("part"), part))


def totals_of(sums: pa.Table) -> pa.Table:
    """The rows without a time: those of ``rates`` and ``domains``, and those of ``replies``, which are added."""
    replies = part_of(sums, "replies")
    at = replies.schema.get_field_index("at_ms")
    replies = replies.set_column(at, "at_ms", pa.nulls(replies.num_rows, _I))
    return add_sums(pa.concat_tables([part_of(sums, "rates"), part_of(sums, "domains"), replies]))


def providers_of(sums: pa.Table) -> pa.Table:
    """``domain`` and ``provider``: that with the most attempts. ``sums``: rows of the part ``domains``."""
    attempts = pc.add(
        pc.add(sums["delivered"], sums["deferred"]), pc.add(sums["bounced"], sums["expired"])
    )
    rows = sums.select(["value", "provider"]).append_column("attempts", attempts)
    ordered = rows.sort_by(
        [("value", "ascending"), ("attempts", "descending"), ("provider", "ascending")]
    )
    first = ordered.group_by("value", use_threads=False).aggregate([("provider", "first")])
    return pa.table({"domain": first.column("value"), "provider": first.column("provider_first")})


def add_rates(rows: pa.Table) -> pa.Table:
    """Rows of the part ``rates``, those of the same dimension and value added."""
    names = pc.binary_join_element_wise(rows.column("dimension"), rows.column("value"), "\0")
    encoded = names.combine_chunks().dictionary_encode()
    code, size = codes_of(encoded), len(encoded.dictionary)
    _, first = np.unique(code, return_index=True)
    counts = {name: pa.array(_sum_by(code, rows.column(name).to_numpy(), size)) for name in ATTEMPTS}
    ages, numbers = (rows.column(name).combine_chunks() for name in ("ages", "age_counts"))
    owner = code[pc.list_parent_indices(ages).to_numpy()]
    pairs, inverse = np.unique((owner << 32) + ages.flatten().to_numpy(), return_inverse=True)
    added = _sum_by(inverse, numbers.flatten().to_numpy(), len(pairs))
    offsets = pa.array(np.searchsorted(pairs >> 32, np.arange(size + 1)), pa.int32())
    columns = {
        "dimension": rows.column("dimension").take(pa.array(first)),
        "value": rows.column("value").take(pa.array(first)),
        **counts,
        "ages": pa.ListArray.from_arrays(offsets, pa.array(pairs & 0xFFFFFFFF)),
        "age_counts": pa.ListArray.from_arrays(offsets, pa.array(added)),
    }
    return as_sums("rates", columns, size)


def _sum_by(code: Numbers, values: Numbers, size: int) -> Numbers:
    """The sums of ``values`` by their code, exact below 2^53."""
    return np.bincount(code, weights=values, minlength=size).astype(np.int64)


def quantiles_ms(rates: pa.Table, shares: Sequence[float]) -> list[pa.Array]:
    """For each share the age that this share of the delivered recipients has at most; null without any."""
    ages, numbers = (rates.column(name).combine_chunks() for name in ("ages", "age_counts"))
    owner = pc.list_parent_indices(ages).to_numpy()
    middle = bucket_age_ms(ages.flatten().to_numpy())
    count = numbers.flatten().to_numpy()
    total = _sum_by(owner, count, rates.num_rows)
    # The running sum within each row: buckets are in order.
    running = np.cumsum(count)
    before = np.concatenate([[0], np.cumsum(total)[:-1]]) if rates.num_rows else total
    found = []
    for share in shares:
        rank = before + np.maximum(np.ceil(share * total).astype(np.int64), 1)
        at = np.minimum(np.searchsorted(running, rank), max(len(running) - 1, 0))
        values = middle[at] if len(middle) else np.zeros(rates.num_rows, dtype=np.int64)
        found.append(pa.array(values, _I, mask=total == 0))
    return found


def codes_of(encoded: pa.DictionaryArray) -> Numbers:
    """The index of each value in the dictionary."""
    codes: Numbers = encoded.indices.to_numpy().astype(np.int64)
    return codes
