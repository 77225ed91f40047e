"""The one door to msgspec: versioned msgpack for the queue, JSON for the ledger.

A record is a ``NamedTuple`` and travels as a msgpack array; decoding checks the type of every
field, so a damaged value is an error here and not a surprise later.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import msgspec.structs

from zonemta_py.core.errors import QueueCorrupt

T = TypeVar("T")


class Struct(msgspec.Struct, frozen=True, gc=False):
    """A frozen record with named fields, built and encoded three times as fast as a data class.

    For what is made once a message or more. Keep cycles out of it: the collector does not look here.
    """


S = TypeVar("S", bound=Struct)


def replace(record: S, **changes: Any) -> S:
    """A copy of a Struct with other values of some fields."""
    return msgspec.structs.replace(record, **changes)


fields_of: Callable[[type], tuple[Any, ...]] = msgspec.structs.fields

pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
to_json: Callable[[Any], bytes] = msgspec.json.Encoder().encode
to_plain: Callable[[Any], Any] = msgspec.to_builtins


def unpacker(kind: type[T]) -> Callable[[bytes | memoryview], T]:
    """A function from msgpack bytes to ``kind``. It raises QueueCorrupt when they are anything else."""
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
    return msgspec.json.decode(data)


def from_plain(value: object, kind: type[T]) -> T:
    """``value``, decoded from JSON, as ``kind``. Raises ValueError that names the wrong field."""
    return msgspec.convert(value, kind)
