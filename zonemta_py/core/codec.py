"""The only importer of msgspec: versioned msgpack for the queue, JSON for the event log.

A record is a ``NamedTuple`` and is stored as a msgpack array; decoding checks the type of every field, so
that a damaged value raises here.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import msgspec.structs
from isal import isal_zlib

from zonemta_py.core.errors import QueueCorrupt

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, gc=False):
    """A frozen record, created and encoded three times as fast as a data class, for hot paths.

    It must not be part of a reference cycle: the garbage collector does not track it.
    """


S = TypeVar("S", bound=Struct)


def replace(record: S, **changes: Any) -> S:
    """A copy of a Struct with some fields changed."""
    return msgspec.structs.replace(record, **changes)


def named(key: str, default: Any = msgspec.NODEFAULT) -> Any:
    """A field of a Struct that is written as ``key``, a word that Python keeps for itself."""
    return msgspec.field(name=key, default=default)


Unset = msgspec.UnsetType
UNSET = msgspec.UNSET  # the default of a field that is left out where it has no value

fields_of: Callable[[type], tuple[Any, ...]] = msgspec.structs.fields

pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
to_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
to_plain: Callable[[Any], Any] = msgspec.to_builtins


def unpacker(kind: type[T]) -> Callable[[bytes | memoryview], T]:
    """A function from msgpack bytes to ``kind``. It raises QueueCorrupt for other data."""
    decode = msgspec.msgpack.Decoder(kind).decode
    name = getattr(kind, "__name__", "value")  # a union has none

    def unpack(data: bytes | memoryview) -> T:
        try:
            return decode(data)
        except (msgspec.MsgspecError, ValueError) as exc:  # ValueError: text that is not UTF-8
            raise QueueCorrupt(f"{name}: {exc}") from exc

    return unpack


def from_json(data: bytes | str) -> Any:
    """Plain values from one JSON document. Raises ValueError when it is not one."""
    try:
        return msgspec.json.decode(data)
    except RecursionError as exc:
        raise ValueError("its arrays and objects are nested too deeply") from exc


def lines_decoder(kind: type[T]) -> Callable[[bytes], list[T]]:
    """A function from JSON lines to a ``kind`` for each; fields that it does not have are skipped. It raises ValueError."""
    decode = msgspec.json.Decoder(kind).decode_lines

    def decode_lines(lines: bytes) -> list[T]:
        try:
            return decode(lines)
        except RecursionError as exc:
            raise ValueError("its arrays and objects are nested too deeply") from exc

    return decode_lines


def from_query(value: object, kind: type[T]) -> T:
    """``value`` as ``kind``, for a value that came as text: numbers and booleans are parsed."""
    return msgspec.convert(value, kind, strict=False)


def schemas_of(kinds: Sequence[type], reference: str) -> dict[str, Any]:
    """The JSON schemas of Structs by their names; ``reference`` is how one refers to another, with ``{name}``."""
    return msgspec.json.schema_components(kinds, ref_template=reference)[1]


def from_plain(value: object, kind: type[T]) -> T:
    """``value``, decoded from JSON, as ``kind``. Raises ValueError that names the wrong field."""
    return msgspec.convert(value, kind)


# ---- CRC-32 with the values of ``zlib.crc32``, three times as fast; the adapter of isal (decision 88).

crc32 = isal_zlib.crc32
