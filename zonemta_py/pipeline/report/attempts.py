"""Sums of attempts, which a report counts, from the JSON lines of segments or from rows of events, by Arrow.

A task makes the sums of all that it reads, so that Spark moves and adds sums instead of events. Steps in ``TaskSums``::

    JSON lines ─ decode_attempts ─▶ attempts (FIELDS) ─ sums_of, by COUNT_ROWS ─▶ sums (SUMS) ─ add_sums, above MERGE_ROWS ─▶ tables

Invariants:

- A row of sums belongs to one ``part``, has the keys of that part (KEYS) and counts; all other columns are null.
- Each attempt is counted once in each part of times and domains, once in each of DIMENSIONS, once in ``all``, and once for each of its
  tags. ``replies`` has failures only.
- Sums of two parts of a log are added (``add_sums``) in any order, with the same result: counts are sums, examples are minima.
- Rows of ``rates`` have the times to delivery, too, as a histogram: a bucket (``age_bucket``) is at most 1/128 as wide as its ages.
- A line that Arrow cannot read, because another event has a field of another type, makes its block be read line by line.

Callers: ``report.sums`` makes and adds sums, in tasks and in the driver; the other modules of ``report`` read parts of them.

Example::

    sums = TaskSums()
    for attempts in decode_attempts(blocks):
        sums.add(attempts)
    tables = list(sums.tables(10_000))
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from zonemta_py.core.codec import from_json
from zonemta_py.pipeline.events.rows import ATTEMPTS, DAY_MS, HOUR_MS, provider_of, reply_kinds

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
FIELDS = {
    "event": _S, "time_ms": _I, "zone": _S, "domain": _S, "source_ip": _S, "tenant": _S, "campaign": _S,
    "provider": _S, "tags": pa.list_(_S), "created_ms": _I, "phase": _S, "class": _S, "code": _I, "status": _S, "reply": _S,
}  # fmt: skip
DIMENSIONS = ("zone", "provider", "domain", "address", "campaign", "tenant")
TAG = "tag"  # a dimension, too: an attempt counts for each of its tags
BLOCK_BYTES = 4 << 20  # of JSON that is decoded at once
COUNT_ROWS = (
    400_000  # that are counted at once: fewer have as many different values, and so almost as many sums
)
MERGE_ROWS = 2_000_000  # of sums that a task keeps before it adds them
Numbers = npt.NDArray[np.int64]


def decode_attempts(blocks: Iterable[bytes]) -> Iterator[pa.Table]:
    """FIELDS of the attempts in JSON lines."""
    waiting: list[bytes] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= BLOCK_BYTES:
            yield _attempts(b"".join(waiting))
            waiting, size = [], 0
    if size:
        yield _attempts(b"".join(waiting))


def _attempts(lines: bytes) -> pa.Table:
    schema = pa.schema(FIELDS)
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        found = pj.read_json(
            BytesIO(lines), pj.ReadOptions(use_threads=False, block_size=len(lines) + 1), options
        )
    except pa.ArrowInvalid:  # another event has one of the fields with another type
        records = (from_json(line) for line in lines.splitlines())
        attempts = [record for record in records if record.get("event") in ATTEMPTS]
        return pa.Table.from_pylist(
            [{name: record.get(name) for name in FIELDS} for record in attempts], schema
        )
    return found.filter(pc.is_in(found.column("event"), pa.array(ATTEMPTS)))


class TaskSums:
    """The sums of what one task reads."""

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, attempts: pa.Table) -> None:
        """Count ``attempts``, a table of FIELDS."""
        self._waiting.append(attempts)
        self._waiting_rows += attempts.num_rows
        if self._waiting_rows >= COUNT_ROWS:
            self._count()

    def _count(self) -> None:
        if self._waiting_rows:
            self._keep(sums_of(pa.concat_tables(self._waiting)))
        self._waiting, self._waiting_rows = [], 0

    def _keep(self, sums: pa.Table) -> None:
        self._parts.append(sums)
        self._rows += sums.num_rows
        if self._rows > MERGE_ROWS:
            self._parts = [add_sums(pa.concat_tables(self._parts))]
            self._rows = self._parts[0].num_rows // 2  # so that the next merge is not at once

    def tables(self, rows: int) -> Iterator[pa.Table]:
        """All sums as tables of SUMS, each of ``rows`` rows at most."""
        self._count()
        found = add_sums(pa.concat_tables(self._parts)) if self._parts else SUMS.empty_table()
        for begin in range(0, found.num_rows, rows):
            yield found.slice(begin, rows).combine_chunks()


def sums_of(attempts: pa.Table) -> pa.Table:
    """The sums of ``attempts``, rows of SUMS."""
    columns = _named(attempts)
    event: Numbers = pc.index_in(columns["event"], pa.array(ATTEMPTS)).to_numpy(zero_copy_only=False)
    age = pc.subtract(columns["time_ms"], columns["created_ms"]).fill_null(0).to_numpy()
    bucket = np.where(event == 0, age_bucket(np.maximum(age, 0)), -1)
    hour = columns["time_ms"].to_numpy() // HOUR_MS * HOUR_MS
    day = hour // DAY_MS * DAY_MS
    found = [_rates("all", pa.array([""]), np.zeros(len(event), dtype=np.int64), event, bucket)]
    for name in DIMENSIONS:
        encoded = columns[name].dictionary_encode()
        found.append(_rates(name, encoded.dictionary, codes_of(encoded), event, bucket))
    tags = columns["tags"]
    if len(tags.flatten()):
        rows = pc.list_parent_indices(tags).to_numpy()
        encoded = tags.flatten().dictionary_encode()
        found.append(_rates(TAG, encoded.dictionary, codes_of(encoded), event[rows], bucket[rows]))
    counts = dict(
        zip(ATTEMPTS, (pa.array((event == n).astype(np.int64)) for n in range(4)), strict=True)
    )
    timed = {"hours": hour, "provider_hours": hour, "days": day}
    for part, at in timed.items():
        keys = {name: columns[name] for name in KEYS[part] if name != "at_ms"}
        found.append(grouped_sums(part, pa.table({"at_ms": pa.array(at), **keys, **counts})))
    found.append(grouped_sums("domains", pa.table({"value": columns["domain"], "provider": columns["provider"], **counts})))  # fmt: skip
    found.append(_replies(columns, event, hour))
    return pa.concat_tables(found)


def _named(attempts: pa.Table) -> dict[str, pa.Array]:
    """The columns of FIELDS as arrays, with ``address``; texts that are missing are empty.

    ``provider``: that of the event, which the relay knew by the hosts of the domain; else that of the relay's table (``provider_of``).
    """
    columns = {name: attempts.column(name).combine_chunks() for name in FIELDS}
    for name in ("zone", "domain", "source_ip", "tenant", "campaign", "class"):
        columns[name] = columns[name].fill_null("")
    domains = columns["domain"].dictionary_encode()
    listed = pa.array(list(map(provider_of, domains.dictionary.to_pylist())), _S).take(domains.indices)
    is_named = pc.not_equal(columns["provider"].fill_null(""), "")
    columns["provider"] = pc.if_else(is_named, columns["provider"], listed)
    columns["address"] = columns["source_ip"]
    return columns


def _rates(dimension: str, values: pa.Array, code: Numbers, event: Numbers, bucket: Numbers) -> pa.Table:
    """Counts and ages of each value of a dimension."""
    size = len(values)
    counts = np.bincount(code * 4 + event, minlength=4 * size).reshape(size, 4)
    is_delivered = bucket >= 0
    pairs, numbers = np.unique((code[is_delivered] << 32) + bucket[is_delivered], return_counts=True)
    offsets = np.searchsorted(pairs >> 32, np.arange(size + 1))
    columns = {
        "dimension": pa.array([dimension]).take(pa.array(np.zeros(size, dtype=np.int64))),
        "value": values,
        **{name: pa.array(counts[:, n]) for n, name in enumerate(ATTEMPTS)},
        "ages": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(pairs & 0xFFFFFFFF)),
        "age_counts": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(numbers)),
    }
    return as_sums("rates", columns, size)


def _replies(columns: Mapping[str, pa.Array], event: Numbers, hour: Numbers) -> pa.Table:
    """The replies to failures by their kind, with an example."""
    is_failure = pa.array(event > 0)
    failed = {name: columns[name].filter(is_failure) for name in ("provider", "event", "phase", "class", "status", "reply")}  # fmt: skip
    failed["at_ms"] = pa.array(hour).filter(is_failure)
    failed["code"] = columns["code"].filter(is_failure).cast(_S)
    failed["kind"] = reply_kinds(failed["reply"])
    grouped = pa.table(failed).group_by(list(KEYS["replies"]))
    summed = grouped.aggregate([([], "count_all"), ("reply", "min")])
    renamed = {"count": summed.column("count_all"), "example": summed.column("reply_min")}
    keys = {name: summed.column(name) for name in KEYS["replies"]}
    return as_sums("replies", {**keys, **renamed}, summed.num_rows)


def codes_of(encoded: pa.DictionaryArray) -> Numbers:
    """The index of each value in the dictionary."""
    codes: Numbers = encoded.indices.to_numpy().astype(np.int64)
    return codes


# ---- Sums of sums, and what is read from them.


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
