"""The interface between a worker, which decides, and a delivery agent, which transmits.

Nothing here knows the queue, so an agent may run in another process.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from zonemta_py.core.codec import Struct, replace
from zonemta_py.core.model import Attempt
from zonemta_py.transports.pipelining import DsnOptions


class DeliveryRequest(Struct, frozen=True, array_like=True):
    """One transaction to execute. The order of the fields is the wire format between processes.

    ``message`` is the id; ``size_bytes`` counts the header, the empty line and the body. ``dsn`` is
    None when the client asked for nothing. ``idle_limits``: how many idle sessions the zone, and the
    destination, may have during the transaction. ``body_hash`` is DKIM's, empty when not known.
    ``tenant``: whose mail it is, or empty.
    ``hurried``: mail of other destinations waits until there is a session, so each host has less time for it.
    """

    destination: str
    message: str
    domain: str
    sender: str
    recipients: Sequence[str]
    header: bytes
    size_bytes: int
    eight_bit: bool
    smtputf8: bool
    dsn: DsnOptions | None
    idle_limits: tuple[int, int]
    body_hash: bytes = b""
    hurried: bool = False
    tenant: str = ""

    def within(self, idle_limits: tuple[int, int]) -> "DeliveryRequest":
        """The same request with other ``idle_limits``."""
        return self if idle_limits == self.idle_limits else replace(self, idle_limits=idle_limits)


class DeliveryResult(Struct, frozen=True, array_like=True):
    """How a request ended. ``attempts`` has an entry per recipient; None or missing: not attempted.

    ``failure``: why no session could be opened, or served any recipient; ``permanent`` if a retry cannot
    succeed. ``has_idle``: the agent has idle sessions with the destination, so the destination is
    reachable. ``refuses_sessions``: the peer closed a new session with 421. ``recipients_max``: the limit per
    transaction that the peer revealed, 0 if it did not. ``sessions``: how many were opened for the request.
    """

    attempts: Sequence[Attempt | None]
    failure: Attempt | None = None
    permanent: bool = False
    has_idle: bool = False
    refuses_sessions: bool = False
    recipients_max: int = 0
    sessions: int = 0


class RequestContext(Protocol):
    """What an agent asks of the owner of the lease while it executes a request.

    ``started`` must be awaited after ``session_opened`` and before the final dot is sent.
    """

    started: Awaitable[None]

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body: whole, or in chunks. The iterator raises QueueCorrupt before the end of a damaged one."""

    def session_opened(self) -> None:
        """A session with the destination is available: the transaction begins."""


class DeliveryAgent(Protocol):
    """Executes the requests of one zone, in this process or through another one."""

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises AgentLost, and what ``context`` raises."""

    def close(self) -> None:
        """No request follows. Idle sessions end now, the others after their transaction."""
