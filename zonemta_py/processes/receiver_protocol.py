"""What the queue's process and a receiver say to each other. ``number`` names a promise between them."""

from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core.codec import Struct, unpacker
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.format.records import IdempotencyRecord


class Welcome(Struct, frozen=True, array_like=True, tag=1):
    """To a receiver, first: whose queue this is, and above which id its own ones begin, in which lane."""

    node: str
    boot: int
    floor: str
    lane: int


class Configure(Struct, frozen=True, array_like=True, tag=2):
    """To a receiver: the configuration, as text and the file it came from; at the start and at a reload.

    It is one of ``receivers``, at ``place``, and takes its part of ``max_sessions``. ``sockets``: how many
    of the inherited ones each listener has, in order.
    """

    text: str
    path: str
    hostname: str
    place: int
    receivers: int
    sockets: list[int]


class Ended(Struct, frozen=True, array_like=True, tag=3):
    """To a receiver: what Write or Accept asked for is on disk; or not, for ``problem``.

    ``final``: nothing can be written any more.
    """

    number: int
    problem: str
    final: bool


class Known(Struct, frozen=True, array_like=True, tag=4):
    """To a receiver: the answer to Look; ``problem``: it could not be read."""

    number: int
    busy: bool
    known: IdempotencyRecord | None
    problem: str


class Stop(Struct, frozen=True, array_like=True, tag=5):
    """To a receiver: take no more connections, and let transactions under way finish."""

    grace_s: float


class Ready(Struct, frozen=True, array_like=True, tag=11):
    """From a receiver: it accepts connections."""


class Write(Struct, frozen=True, array_like=True, tag=12):
    """From a receiver: a part of a body; the keys and values to write. Answered by Ended."""

    number: int
    message: str
    ops: list[tuple[bytes, bytes]]


class Accept(Struct, frozen=True, array_like=True, tag=13):
    """From a receiver: take responsibility for a message. Answered by Ended.

    ``last`` is the chunk of its body that is not written yet; the rest describes the whole.
    """

    number: int
    message: str
    new: NewMessage
    chunks: int
    size: int
    crc: int
    last: bytes


class Abort(Struct, frozen=True, array_like=True, tag=14):
    """From a receiver: the body will not be finished."""

    message: str


class Fact(Struct, frozen=True, array_like=True, tag=15):
    """From a receiver: a fact for the ledger, as the ledger writes it."""

    event: bytes


class Look(Struct, frozen=True, array_like=True, tag=16):
    """From a receiver: what is known of a submission key? ``take``: and it is at it now, unless another is."""

    number: int
    digest: str
    take: bool


class GiveBack(Struct, frozen=True, array_like=True, tag=17):
    """From a receiver: a key that it took is free again."""

    digest: str


class Drained(Struct, frozen=True, array_like=True, tag=18):
    """From a receiver: no session is left; the answer to Stop."""


Frame = (
    Welcome | Configure | Ended | Known | Stop
    | Ready | Write | Accept | Abort | Fact | Look | GiveBack | Drained
)  # fmt: skip

decode: Callable[[bytes | memoryview], Frame] = unpacker(cast(Any, Frame))  # a union, which is no class
