"""Makes sums of attempts, what a report counts, from the JSON lines of segments or from rows of events, by Arrow.

A task makes the sums of all that it reads, so that Spark moves and adds sums instead of events.
"""

from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from zonemta_py.core.codec import from_json
from zonemta_py.pipeline.rules.provider import provider_of
from zonemta_py.pipeline.rules.templates import masked
from zonemta_py.pipeline.transforms.sums import (
    ATTEMPTS,
    DAY_MS,
    HOUR_MS,
    KEYS,
    SUMS,
    Numbers,
    add_sums,
    age_bucket,
    as_sums,
    codes_of,
    grouped_sums,
)

DIMENSIONS = ("zone", "provider", "domain", "address", "campaign", "tenant")
TAG = "tag"  # a dimension, too: an attempt counts for each of its tags
KIND_MAX = 200  # characters of a masked reply
BLOCK_BYTES = 4 << 20  # of JSON that is decoded at once
COUNT_ROWS = (
    400_000  # that are counted at once: fewer have as many different values, and so almost as many sums
)
MERGE_ROWS = 2_000_000  # of sums that a task keeps before it adds them

_S, _I = pa.string(), pa.int64()
FIELDS = {
    "event": _S, "time_ms": _I, "zone": _S, "domain": _S, "source_ip": _S, "tenant": _S, "campaign": _S,
    "provider": _S, "tags": pa.list_(_S), "created_ms": _I, "phase": _S, "class": _S, "code": _I, "status": _S, "reply": _S,
}  # fmt: skip


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

    ``provider``: that of the event, which the relay knew by the hosts of the domain; else that of ``rules.provider``.
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


def reply_kinds(replies: pa.Array) -> pa.Array:
    """Replies without addresses, ids and numbers (``templates.masked``), of at most KIND_MAX characters.

    What the digits are makes no difference to that, so that few replies are left to be masked.
    """
    encoded = pc.replace_substring_regex(replies, r"[0-9]", "0").dictionary_encode()
    kinds = pa.array([masked(text)[:KIND_MAX] for text in encoded.dictionary.to_pylist()], _S)
    return kinds.take(encoded.indices)
