"""The interface between a worker, which decides, and a delivery agent, which transmits.

Nothing here knows the queue, so an agent may run in another process.
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

from zonemta_py.core.codec import Struct, replace
from zonemta_py.core.model import Attempt
from zonemta_py.egress.paths import EgressOrder
from zonemta_py.smtp.mx_order import MxAnswer
from zonemta_py.transports.session import DsnOptions


class DeliveryRequest(Struct, frozen=True, array_like=True):
    """One transaction to execute. The order of the fields is the wire format between processes.

    ``message`` is the id; ``size_bytes`` counts the header, the empty line and the body. ``dsn`` is
    None when the client asked for nothing. ``idle_limits``: how many idle sessions the zone, and the
    destination, may have during the transaction. ``body_hash`` is DKIM's, empty when not known.
    ``tenant``: whose mail it is, or empty. ``order``: what limits of providers and addresses allow; None: there are
    none, and the agent chooses an address of the zone's pool, ``prefers`` if it can be. ``asks_hosts``: the result is to have them.
    ``lacks_hosts``: when its turn came none were found, so that no limit of their provider was asked: if there are some now, nothing is sent.
    ``session_within_s``: each host has this time for a session, all of them twice that, because mail of other destinations waits for the connection; 0: what the zone allows.
    ``turn``: with which of the hosts the attempt begins, counted round; 0: with the most preferred one.
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
    session_within_s: float = 0.0
    tenant: str = ""
    order: EgressOrder | None = None
    asks_hosts: bool = False
    prefers: str = ""
    turn: int = 0
    lacks_hosts: bool = False

    def within(self, idle_limits: tuple[int, int], sessions_max: tuple[int, int]) -> "DeliveryRequest":
        """The same request with other limits of sessions."""
        changed = self if idle_limits == self.idle_limits else replace(self, idle_limits=idle_limits)
        if self.order is None or sessions_max == self.order.sessions_max:
            return changed
        return replace(changed, order=replace(self.order, sessions_max=sessions_max))


class DeliveryResult(Struct, frozen=True, array_like=True):
    """How a request ended. ``attempts`` has an entry per recipient; None or missing: not attempted.

    ``failure``: why no session could be opened, or served any recipient; ``permanent`` if a retry cannot
    succeed. ``has_idle``: the agent has idle sessions with the destination, so the destination is
    reachable. ``refuses_sessions``: the peer closed a new session with 421. ``recipients_max``: the limit per
    transaction that the peer revealed, 0 if it did not. ``sessions``: how many were opened for the request.
    ``not_permitted``: a further session was needed and not allowed, and nothing was sent. ``tried``: connections were made
    that opened none. ``hosts``: those of the domain, if the request asked for them.
    """

    attempts: Sequence[Attempt | None]
    failure: Attempt | None = None
    permanent: bool = False
    has_idle: bool = False
    refuses_sessions: bool = False
    recipients_max: int = 0
    sessions: int = 0
    not_permitted: bool = False
    tried: bool = False
    hosts: MxAnswer | None = None


class RequestContext(Protocol):
    """The owner of the lease, as an agent sees it while it executes a request.

    ``started`` must be awaited after ``session_opened`` and before the final dot is sent.
    """

    started: Awaitable[None]

    def body(self) -> bytes | AsyncIterator[bytes]:
        """The body: whole, or in chunks. The iterator raises QueueCorrupt before the end of a damaged one."""

    def session_opened(self, opened: int) -> None:
        """A session with the destination is available: the transaction begins. ``opened``: 1 if it is new, else 0."""


class DeliveryAgent(Protocol):
    """Executes the requests of one zone, in this process or through another one."""

    async def deliver(self, request: DeliveryRequest, context: RequestContext) -> DeliveryResult:
        """Execute ``request``. Raises AgentLost, and what ``context`` raises."""

    async def resolve(self, domain: str) -> MxAnswer:
        """The MX hosts of ``domain``; none if they cannot be found now. Raises AgentLost."""

    def close(self) -> None:
        """No request follows. Idle sessions end now, the others after their transaction."""
