"""JSON lines of the event log as tables of ``event_schema``, by Arrow, with the values that Spark's reader of JSON has.

Attempts are most of a log, and have the same few fields; other events are decoded one by one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from zonemta_py.core.codec import fields_of, from_json, to_json
from zonemta_py.events.schema import EVENTS
from zonemta_py.pipeline.transforms.sums import ATTEMPTS

BLOCK_BYTES = 4 << 20  # of JSON that is decoded at once
OTHER_LINES = 5000  # that are decoded at once
TAGS = "tags"
NUL = "\0"  # between tags, which rarely contain one
INT_MAX = (1 << 63) - 1

_ALWAYS = ("node", "seq", "position", "event")
_NAMES = tuple(f'"event":"{name}"'.encode() for name in ATTEMPTS)


class EventDecoder:
    """Decodes lines to tables of ``schema``: that of ``event_schema`` without the date and the hour of the segment."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        events = [event for event in EVENTS if event.name in ATTEMPTS]
        fields = {field.encode_name for event in events for field in fields_of(event)}
        self._of_attempts = pa.schema(
            [
                pa.field(each.name, pa.list_(pa.string())) if each.name == TAGS else each
                for each in schema
                if each.name in fields.union(_ALWAYS)
            ]
        )

    def tables(self, frames: Iterable[bytes]) -> Iterator[pa.Table]:
        """The events in whole lines; their order is not kept."""
        attempts: list[bytes] = []
        others: list[bytes] = []
        size = 0
        for frame in frames:
            flat, more = _divided(frame)
            others += more
            if len(others) >= OTHER_LINES:
                yield self._decoded_one_by_one(others)
                others = []
            attempts.append(flat)
            size += len(flat)
            if size >= BLOCK_BYTES:
                yield self._decoded(b"".join(attempts))
                attempts, size = [], 0
        if size:
            yield self._decoded(b"".join(attempts))
        if others:
            yield self._decoded_one_by_one(others)

    def _decoded(self, lines: bytes) -> pa.Table:
        reading = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        options = pj.ParseOptions(explicit_schema=self._of_attempts, unexpected_field_behavior="ignore")
        try:
            found = pj.read_json(pa.BufferReader(lines), reading, options).combine_chunks()
        except pa.ArrowInvalid:  # a field of another type: of a newer relay
            return self._decoded_one_by_one(lines.splitlines())
        tags = found.column(TAGS)
        texts = _as_json(tags.chunk(0) if tags.num_chunks else pa.array([], tags.type))
        if texts is None:
            return self._decoded_one_by_one(lines.splitlines())
        found = found.set_column(found.schema.get_field_index(TAGS), TAGS, texts)
        missing = pa.nulls(found.num_rows)
        columns = [
            found.column(each.name) if each.name in found.column_names else missing.cast(each.type)
            for each in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def _decoded_one_by_one(self, lines: Iterable[bytes]) -> pa.Table:
        records: list[Mapping[str, Any]] = list(map(from_json, lines))
        present = set[str]().union(*records)
        columns = [
            pa.array(_values((record.get(each.name) for record in records), each.type), each.type)
            if each.name in present
            else pa.nulls(len(records), each.type)
            for each in self.schema
        ]
        return pa.table(columns, schema=self.schema)


def _divided(frame: bytes) -> tuple[bytes, list[bytes]]:
    """The lines of attempts together, and all others. In a text of JSON the quotes of a name would be escaped."""
    if sum(map(frame.count, _NAMES)) == frame.count(b"\n"):
        return frame, []
    attempts: list[bytes] = []
    others: list[bytes] = []
    for line in frame.splitlines(keepends=True):
        (attempts if any(name in line for name in _NAMES) else others).append(line)
    return b"".join(attempts), others


def _as_json(tags: pa.ListArray) -> pa.StringArray | None:
    """The text of each list of texts; None where it has to be made from the line."""
    each = tags.flatten()
    if each.null_count or pc.any(pc.match_substring(each, NUL)).as_py():
        return None
    joined = pc.binary_join(tags, NUL).dictionary_encode()
    texts = pa.array(
        [to_json(text.split(NUL)).decode() for text in joined.dictionary.to_pylist()], pa.string()
    )
    return pc.if_else(pc.equal(pc.list_value_length(tags), 0), "[]", texts.take(joined.indices))


def _values(found: Iterable[Any], kind: pa.DataType) -> list[Any]:
    """Values as Spark reads them: null where one does not fit; the JSON of what is no text."""
    if pa.types.is_string(kind):
        return [each if each is None or type(each) is str else to_json(each).decode() for each in found]
    if pa.types.is_boolean(kind):
        return [each if type(each) is bool else None for each in found]
    return [each if type(each) is int and -INT_MAX - 1 <= each <= INT_MAX else None for each in found]
