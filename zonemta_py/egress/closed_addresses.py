"""The source addresses from which a destination may open no session now. Pure; times are ms.

A permit may be for a session that is idle, with any host of the provider. It does not help a destination that has other
hosts, where a connect rate allows no new one: that takes its other addresses, or waits until one is open again.
"""

from zonemta_py.config.sending import PoolAddress
from zonemta_py.egress.admission import WorkerSlot
from zonemta_py.egress.limits import Allowance, Permit
from zonemta_py.egress.paths import Limit, Refusal
from zonemta_py.egress.sources import PoolPart, source_name

AGAIN_MS = 20  # where no window says until when
PRUNE_MIN = 1000  # destinations, before those whose time is over are dropped


class ClosedAddresses:
    """For each destination of a zone: the source addresses that may open no new session, and until when."""

    def __init__(self) -> None:
        self._until_ms: dict[str, dict[str, int]] = {}  # by destination and address
        self._refused: set[WorkerSlot] = set()
        self._prune_at = PRUNE_MIN

    def close(self, slot: WorkerSlot, now_ms: int) -> None:
        """The permit of the worker allowed no new session, and there was none that its destination could use."""
        permit = slot.permit
        waits = [path.connects.wait_ms(now_ms) for path in permit.paths if path.connects is not None]
        until_ms = max(waits, default=now_ms + AGAIN_MS) or now_ms + 1
        self._until_ms.setdefault(slot.destination.name, {})[permit.address] = until_ms
        self._refused.add(slot)
        if len(self._until_ms) > self._prune_at:
            self._until_ms = {
                name: closed for name, closed in self._until_ms.items() if max(closed.values()) > now_ms
            }
            self._prune_at = max(PRUNE_MIN, 2 * len(self._until_ms))

    def ended(self, slot: WorkerSlot, *, had_session: bool) -> bool:
        """The worker has ended. Returns whether addresses were closed for its destination, which can use the session that it leaves."""
        if slot in self._refused:
            self._refused.remove(slot)
            return False
        return had_session and self._until_ms.pop(slot.destination.name, None) is not None

    def clear(self) -> None:
        """Forget everything: a reload may have changed the rates."""
        self._until_ms.clear()

    def open_of(
        self, destination: str, entries: list[PoolAddress], now_ms: int, held: str = ""
    ) -> list[PoolAddress]:
        """Those of ``entries`` that are not closed for it, and the address that a worker of it holds."""
        closed = self._until_ms.get(destination)
        if closed is None:
            return entries
        names = ((each, source_name(each)) for each in entries)
        return [each for each, name in names if name == held or closed.get(name, 0) <= now_ms]

    def take(
        self,
        allowance: Allowance,
        destination: str,
        provider: str,
        part: PoolPart,
        every: list[PoolAddress],
        now_ms: int,
    ) -> Permit | Refusal:
        """As ``Allowance.take_wanted``, of the addresses that are not closed for the destination; ``part``: those that are wanted."""
        wanted = list(part.of(every))
        is_open = self.open_of(destination, wanted, now_ms)
        if is_open or not wanted:
            every = self.open_of(destination, every, now_ms)
            return allowance.take_wanted(provider, is_open, every, now_ms)
        closed = self._until_ms[destination]
        until_ms = min(closed[source_name(each)] for each in wanted)
        reason = "no new session is allowed"
        return Refusal(Limit.PROVIDER_CONNECT_RATE, until_ms, reason, is_alone=True)
