"""What a sender is asked to do, and what it says of it: all that passes between deciding and sending.

What all zones share when they decide: the queue, names, rules. A reload replaces it.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from zonemta_py.config.schema import Config
from zonemta_py.core.codec import Struct, replace
from zonemta_py.core.model import Attempt
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router
from zonemta_py.transports.pipelining import DsnOptions


class DeliveryRequest(Struct, frozen=True, array_like=True):
    """A transaction to be. ``size`` is the message's, header and empty line included.

    ``dsn`` is None when nobody asked for anything. ``room``: how many sessions may rest in the zone
    and at the destination meanwhile. ``body_hash`` is DKIM's, empty when it is not known.
    """

    destination: str
    message: str
    domain: str
    sender: str
    recipients: Sequence[str]
    header: bytes
    size: int
    eight_bit: bool
    smtputf8: bool
    dsn: DsnOptions | None
    room: tuple[int, int]
    body_hash: bytes = b""

    def with_room(self, room: tuple[int, int]) -> "DeliveryRequest":
        """The same with another ``room``."""
        return replace(self, room=room)


class DeliveryResult(Struct, frozen=True, array_like=True):
    """What came of it. ``attempts`` has one entry per recipient, None or missing for those not tried.

    ``failure``: no session could be had, and this is why; ``permanent`` if trying again cannot help.
    ``held``: other sessions with the destination rest here, so the peer is there.
    """

    attempts: Sequence[Attempt | None]
    failure: Attempt | None = None
    permanent: bool = False
    held: bool = False


class RequestContext(Protocol):
    """What a sender asks of the one who holds the lease, while it carries out an order.

    ``started``, once ``opened`` was said, must be awaited before the final dot goes out.
    """

    started: Awaitable[None]

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body: whole, or in chunks. The iterator raises QueueCorrupt before the end of a damaged one."""

    def opened(self) -> None:
        """There is a session with the destination."""


@dataclass(slots=True)
class DeliveryContext:
    """Everything a settle or a report asks that is not its zone's own."""

    queue: Queue
    config: Config
    hostname: str
    router: Router
    rng: Random = field(default_factory=Random)
