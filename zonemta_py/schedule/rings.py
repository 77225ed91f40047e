"""The rings in which destinations with mail wait for their turn, and a worker that has got one."""

from enum import IntEnum

from zonemta_py.schedule.destination import Destination
from zonemta_py.schedule.permits import FREE, Permit


class Ring(IntEnum):
    """The rings of destinations with mail. A destination in one of the first two is in another one as well."""

    URGENT = 0  # has answered lately, and has mail of a low-volume submitter
    FRESH = 1  # as NEW, and its mail has just come; the newest first
    KNOWN = 2  # has answered lately
    NEW = 3  # has not
    FAILING = 4  # its suspension is over, one worker may probe it


# Attributes of an enumeration are slow to read, and each message reads several.
URGENT, FRESH, KNOWN, NEW, FAILING = Ring
# The order in which the rings are asked, by the ring that had the last turn.
ORDERS = {
    KNOWN: (URGENT, FRESH, NEW, FAILING, KNOWN),
    NEW: (URGENT, FRESH, FAILING, KNOWN, NEW),
    FAILING: (URGENT, FRESH, KNOWN, NEW, FAILING),
}


IN_ROW = (
    10  # messages: fewer follow the weights closely, more displace fewer sessions of other addresses
)


class WorkerSlot:
    """One worker of a zone: its destination, and what it counts for.

    ``established``: it has had a session. ``is_newcomer``: it has had no lease. ``unpaid``: it has no token yet for
    its current lease. ``ring``: where its destination was when it started. ``hurried``: others wait for its place
    until it has a session. ``permit``: what it may send, and from where; ``pool``: whose mail, see ``Admitted``.
    ``source``: the address of ours that was drawn for messages without an attempt; ``in_row`` of them have left from it.
    ``gives_way``: it ends because others wait for what it uses.
    """

    __slots__ = (
        "destination", "established", "gives_way", "hurried", "in_row", "is_newcomer", "permit", "pool", "ring", "source", "unpaid",
    )  # fmt: skip

    def __init__(
        self,
        destination: Destination,
        ring: Ring,
        permit: Permit = FREE,
        pool: str | None = None,
        *,
        hurried: bool,
    ) -> None:
        self.destination = destination
        self.permit = permit
        self.pool = pool
        self.ring = ring
        self.hurried = hurried
        self.established = False
        self.is_newcomer = True
        self.unpaid = True
        self.source = ""
        self.in_row = 0
        self.gives_way = False

    def left_from(self, source: str) -> None:
        """A message without an attempt has left from ``source``: retries must not draw new mail to their address."""
        self.in_row = self.in_row + 1 if source == self.source else 1
        self.source = source

    @property
    def draws(self) -> bool:
        """Whether the address of its next message without an attempt is drawn by weight: IN_ROW have had this one."""
        return self.in_row > 0 and self.in_row % IN_ROW == 0
