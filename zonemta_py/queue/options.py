"""What a queue is opened with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from zonemta_py.queue.active import ActiveMessage
from zonemta_py.queue.format.records import Note
from zonemta_py.queue.outcome import Outcome, SettleEffects
from zonemta_py.queue.upkeep.recovery import EndOfLog, NewestInLog, no_event_log, no_message
from zonemta_py.storage.interface import Access

if TYPE_CHECKING:
    from zonemta_py.queue.queue import Queue

LONGEST_DELAY_MS = 400 * 86_400_000


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """``window``: recipients per zone in memory. ``poison_after``: see ``InterruptedDeliveries``.

    ``access``: that with which the store was opened; with READ only what reads may be called.
    ``end_of_log`` and ``newest_in_log``: see ``begin_boot``. ``longest_delay_ms``: see ``Deferral``.
    """

    sync: bool = True
    window: int = 100_000
    body_cache_bytes: int = 0
    poison_after: int = 3
    access: Access = Access.CREATE
    end_of_log: EndOfLog = no_event_log
    newest_in_log: NewestInLog = no_message
    longest_delay_ms: int = LONGEST_DELAY_MS


class Reports(Protocol):
    """Composes the reports on failures that are not the outcome of a delivery."""

    def notes(self, active: ActiveMessage, outcomes: Sequence[Outcome]) -> Sequence[Note]:
        """What is to be reported of ``outcomes``."""

    async def prepare(self, queue: "Queue", active: ActiveMessage) -> None:
        """Prepare the report on the failures that were noted of ``active``, with turns of the loop if there are many.

        ``forget`` follows.
        """

    def forget(self, active: ActiveMessage) -> None:
        """The report is composed, or not needed."""

    def report(self, queue: "Queue", active: ActiveMessage, notes: Sequence[Note]) -> SettleEffects:
        """What the batch that ends ``active``, or removes ``notes``, has to cause."""
