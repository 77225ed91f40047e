"""What a zone's scheduler asks before a worker starts: the limits that are not those of the zone. Pure."""

from typing import NamedTuple, Protocol

from zonemta_py.core.model import PoolKey
from zonemta_py.schedule.constraint import Binding
from zonemta_py.schedule.permits import FREE, Permit
from zonemta_py.schedule.rings import WorkerSlot


class Admitted(NamedTuple):
    """What a worker may send: only mail that leaves from ``pool_key``, see ``MailPools`` of the queue; None: any."""

    permit: Permit
    pool_key: PoolKey | None = None


ANY_MAIL = Admitted(FREE)


class Admission(Protocol):
    """Whether the limits of providers and of our addresses allow a worker, see ``delivery.zone_egress``."""

    def looks_up(self, destination: str) -> bool:
        """Whether the hosts of a destination that has not answered lately are looked up first; ``ready`` will be called for it."""

    def admit(self, destination: str) -> Admitted | None:
        """What a worker for ``destination`` may send; None: ``ready`` will be called for it when it may."""

    def passed(self, destination: str) -> None:
        """The destination cannot be served now for another reason: the next one gets its turn."""

    def none_starts(self) -> None:
        """No other worker can start now: capacity that is offered to the zone goes to others."""

    def empty(self, destination: str) -> None:
        """It has no mail."""

    def may_continue(self, slot: WorkerSlot) -> bool:
        """Whether the worker may send another message."""

    def others_wait(self, slot: WorkerSlot) -> bool:
        """Whether others wait for what the worker uses."""

    def ended(self, slot: WorkerSlot) -> None:
        """The worker has ended."""

    def binding(self, destination: str, now_s: float, pool_key: PoolKey) -> Binding | None:
        """Which limit keeps its mail that leaves from ``pool_key`` waiting."""


class Unlimited:
    """The admission of a zone without such limits."""

    def looks_up(self, destination: str) -> bool:
        """Nothing depends on its hosts."""
        return False

    def admit(self, destination: str) -> Admitted | None:
        """Everything is allowed."""
        return ANY_MAIL

    def passed(self, destination: str) -> None:
        """There are no turns."""

    def none_starts(self) -> None:
        """Nothing is offered."""

    def empty(self, destination: str) -> None:
        """Nothing waits."""

    def may_continue(self, slot: WorkerSlot) -> bool:
        """Everything is allowed."""
        return True

    def others_wait(self, slot: WorkerSlot) -> bool:
        """Nothing waits."""
        return False

    def ended(self, slot: WorkerSlot) -> None:
        """Nothing is counted."""

    def binding(self, destination: str, now_s: float, pool_key: PoolKey) -> Binding | None:
        """Nothing waits."""
        return None
