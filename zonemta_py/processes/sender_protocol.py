"""The frames between the queue's process and a sender. ``number`` names a request between them.

The order of the fields and the tags are the wire format.
"""

from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core.codec import Struct, unpacker
from zonemta_py.core.model import PathKey
from zonemta_py.delivery.request import DeliveryRequest, DeliveryResult
from zonemta_py.delivery.session_pool import NO_PATH
from zonemta_py.processes.link import LogLevel, SetTraces, Traced
from zonemta_py.smtp.mx_order import MxAnswer

BODY_INLINE_MAX = 65_536  # bytes: a longer body is fetched chunk by chunk


class Configure(Struct, frozen=True, array_like=True, tag=1):
    """To a sender, at the start and at a reload: text and path of the configuration, and what it includes."""

    text: str
    path: str
    included: tuple[tuple[str, str], ...]
    hostname: str


class Deliver(Struct, frozen=True, array_like=True, tag=2):
    """To a sender: execute a request. ``body`` is None when it is to be fetched. Answered by Done."""

    number: int
    zone: str
    request: DeliveryRequest
    body: bytes | None


class Durable(Struct, frozen=True, array_like=True, tag=3):
    """To a sender: the start of the transaction is on disk, the final dot may be sent."""

    number: int


class Chunk(Struct, frozen=True, array_like=True, tag=4):
    """To a sender: the next chunk of a body; ``problem``: the body is damaged.

    ``reading`` is that of the FetchChunk it answers: a body may be read again before all answers came.
    """

    number: int
    reading: int
    data: bytes
    last: bool
    problem: str = ""


class Trim(Struct, frozen=True, array_like=True, tag=5):
    """To a sender: close the idle sessions above these limits. Answered by Trimmed.

    ``path``: provider and source address; ``path_limits``: see ``EgressOrder.sessions_max``.
    """

    number: int
    zone: str
    destination: str
    zone_limit: int
    destination_limit: int
    path: PathKey = NO_PATH
    path_limits: tuple[int, int] = (-1, -1)


class Cancel(Struct, frozen=True, array_like=True, tag=6):
    """To a sender: abort a transaction before its final dot."""

    number: int


class HostStatus(Struct, frozen=True, array_like=True, tag=7):
    """In both directions: a connection from ``source`` to a host timed out, or was answered (``skip_s`` -1).

    ``skip_s``: how long the address is skipped if this timeout counts.
    """

    source: str
    ip: str
    port: int
    destination: str
    skip_s: float


class ClearUnreachable(Struct, frozen=True, array_like=True, tag=8):
    """To a sender: forget an unreachable address, those of a destination, or all (both empty)."""

    ip: str
    destination: str


class SessionOpened(Struct, frozen=True, array_like=True, tag=11):
    """From a sender: there is a session for the request, a new one if ``opened``. Answered by Durable, or by Cancel."""

    number: int
    opened: int


class FetchChunk(Struct, frozen=True, array_like=True, tag=12):
    """From a sender: send the next chunk of the body; a new ``reading`` begins with the first.

    Answered by Chunk.
    """

    number: int
    reading: int


class Done(Struct, frozen=True, array_like=True, tag=13):
    """From a sender: the result of a request; None: an internal error, ``problem``.

    ``idle``: the number of idle sessions with the destination; ``idle_there``: on the path of the request.
    """

    number: int
    result: DeliveryResult | None
    problem: str
    idle: int
    idle_there: int


class IdleSessions(Struct, frozen=True, array_like=True, tag=14):
    """From a sender: the number of idle sessions with a destination, and on a path, after one was closed."""

    zone: str
    destination: str
    count: int
    path: PathKey
    count_there: int


class Trimmed(Struct, frozen=True, array_like=True, tag=15):
    """From a sender: Trim ``number`` is done."""

    number: int


class Resolve(Struct, frozen=True, array_like=True, tag=9):
    """To a sender: find the MX hosts of a domain. Answered by Resolved."""

    number: int
    zone: str
    domain: str


class Resolved(Struct, frozen=True, array_like=True, tag=16):
    """From a sender: the answer to Resolve ``number``."""

    number: int
    answer: MxAnswer


class Configured(Struct, frozen=True, array_like=True, tag=17):
    """From a sender: it has its configuration."""


Frame = (
    Configure | Deliver | Durable | Chunk | Trim | Cancel | HostStatus | ClearUnreachable
    | SessionOpened | FetchChunk | Done | IdleSessions | Trimmed | Resolve | Resolved | Configured | LogLevel | SetTraces | Traced
)  # fmt: skip

decode: Callable[[bytes | memoryview], Frame] = unpacker(cast(Any, Frame))  # a union is not a type
