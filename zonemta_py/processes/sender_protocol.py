"""What the queue's process and a sender say to each other. ``number`` names an order between them."""

from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core.codec import Struct, unpacker
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult

BODY_INLINE_MAX = 65_536  # octets: a longer body is asked for, chunk by chunk


class Configure(Struct, frozen=True, array_like=True, tag=1):
    """To a sender: the configuration, as text and the file it came from; at the start and at a reload."""

    text: str
    path: str
    hostname: str


class Deliver(Struct, frozen=True, array_like=True, tag=2):
    """To a sender: carry out an order. ``body`` is None when it is to be asked for."""

    number: int
    zone: str
    order: DeliveryRequest
    body: bytes | None


class Durable(Struct, frozen=True, array_like=True, tag=3):
    """To a sender: the beginning of the transaction is on disk, the final dot may go out."""

    number: int


class Chunk(Struct, frozen=True, array_like=True, tag=4):
    """To a sender: the next chunk; ``problem``: it cannot be read, the body is damaged.

    ``reading`` is that of the More it answers: a body may be read again before all answers came.
    """

    number: int
    reading: int
    data: bytes
    last: bool
    problem: str = ""


class Trim(Struct, frozen=True, array_like=True, tag=5):
    """To a sender: let no more sessions rest than so many in the zone, and at the destination."""

    number: int
    zone: str
    destination: str
    in_zone: int
    at_destination: int


class GiveUp(Struct, frozen=True, array_like=True, tag=6):
    """To a sender: end an order's session before its final dot."""

    number: int


class Address(Struct, frozen=True, array_like=True, tag=7):
    """Both ways: a connection attempt to ``ip`` timed out (with its ``spread``), or (-1) was answered."""

    ip: str
    spread: float


class Forget(Struct, frozen=True, array_like=True, tag=8):
    """To a sender: an operator cleared a dead address, or all (empty)."""

    ip: str


class Opened(Struct, frozen=True, array_like=True, tag=11):
    """From a sender: there is a session for the order; answered by Durable."""

    number: int


class More(Struct, frozen=True, array_like=True, tag=12):
    """From a sender: the next chunk of the body, please; a new ``reading`` begins with the first."""

    number: int
    reading: int


class Done(Struct, frozen=True, array_like=True, tag=13):
    """From a sender: what came of an order; None: it broke, for ``problem``.

    ``resting``: how many sessions with the destination rest there now.
    """

    number: int
    sent: DeliveryResult | None
    problem: str
    resting: int


class Resting(Struct, frozen=True, array_like=True, tag=14):
    """From a sender: so many sessions with a destination rest there now."""

    zone: str
    destination: str
    count: int


class Trimmed(Struct, frozen=True, array_like=True, tag=15):
    """From a sender: Trim ``number`` is done."""

    number: int


Frame = (
    Configure | Deliver | Durable | Chunk | Trim | GiveUp | Address | Forget
    | Opened | More | Done | Resting | Trimmed
)  # fmt: skip

decode: Callable[[bytes | memoryview], Frame] = unpacker(cast(Any, Frame))  # a union, which is no class
