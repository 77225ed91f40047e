"""Whether a source address may send to a provider now: permits, and warm-up schedules. Pure.

Times are unix ms. The relay asks this in the queue's process (``delivery.egress``), the simulator on a virtual clock.
"""

from collections.abc import Callable, Sequence
from math import inf

from zonemta_py.config.sending import PoolAddress
from zonemta_py.schedule.constraint import Limit
from zonemta_py.schedule.paths import KEPT_MS, Refusal
from zonemta_py.schedule.permits import FREE, Permit, Permits, Stored
from zonemta_py.schedule.rate_windows import UNTIL_EVENT
from zonemta_py.schedule.sources import source_name
from zonemta_py.schedule.warmup import DAY_MS, Warming, WarmUp


class Allowance:
    """Decides which source address may send to a provider now; all zones share one. ``on_room``: see ``Permits``."""

    def __init__(self, on_room: Callable[[str, str], None]) -> None:
        self.permits = Permits(on_room)
        self.warmup = WarmUp()

    def stopped_address(self, name: str) -> Refusal | None:
        """The refusal of an address that an operator has suspended."""
        return None

    def calendar_ms(self, now_ms: int) -> int:
        """The unix time of the calendar at ``now_ms``: the days of warm-up are those of it."""
        return now_ms

    def is_limited(self, provider: str, entry: PoolAddress) -> bool:
        """Whether anything may refuse mail from the address ``entry`` to ``provider``."""
        name = source_name(entry)
        return bool(
            self.permits.is_limited(provider, name)
            or self.warmup.of(name, provider)
            or self.stopped_address(name)
        )

    def refusal(
        self, provider: str, entry: PoolAddress, now_ms: int, *, session: bool = True
    ) -> Refusal | None:
        """What refuses a message from the address ``entry`` to ``provider`` now."""
        name = source_name(entry)
        found = self._unused(name, self._warming(provider, name), now_ms)
        return found or self.permits.refusal(provider, name, now_ms, session=session)

    def _warming(self, provider: str, name: str) -> Sequence[Warming]:
        return self.warmup.of(name, provider) if self.warmup else ()

    def _unused(self, name: str, warming: Sequence[Warming], now_ms: int) -> Refusal | None:
        """Why the address may not be used now, whatever the limits."""
        found = self.stopped_address(name)
        if found is not None:
            return found
        today_ms = self.calendar_ms(now_ms) if warming else now_ms
        for each in warming:
            if each.room(today_ms) == 0:
                what, days = each.why_none(today_ms // DAY_MS)
                until_ms = now_ms - today_ms % DAY_MS + days * DAY_MS
                reason = f"{name} is new and {what}"
                at = () if each.schedule.provider else ((name, until_ms),)
                return Refusal(Limit.WARMUP, until_ms, reason, at)
        return None

    def take(self, provider: str, entries: Sequence[PoolAddress], now_ms: int) -> Permit | Refusal:
        """A permit for the first of ``entries`` that may be used, else why none may."""
        refusals: list[Refusal] = []
        for entry in entries:
            name = source_name(entry)
            warming = self._warming(provider, name)
            permit = self._unused(name, warming, now_ms) or self.permits.take(provider, name, now_ms)
            if isinstance(permit, Permit):
                _count_warming(permit, warming)
                return permit
            refusals.append(permit)
        if not refusals:
            return Refusal(Limit.NO_SOURCE, UNTIL_EVENT, "every address of the pool is disabled")
        return together(refusals, now_ms)

    def take_wanted(
        self,
        provider: str,
        wanted: Sequence[PoolAddress],
        every: Sequence[PoolAddress],
        now_ms: int,
    ) -> Permit | Refusal:
        """A permit for one of ``wanted``, a part of ``every``; for any, if none of those has room for long."""
        permit = self.take(provider, wanted, now_ms)
        is_part = len(wanted) < len(every)
        if is_part and isinstance(permit, Refusal) and self.refuses_for_long(provider, wanted, now_ms):
            return self.take(provider, every, now_ms)
        return permit

    def refuses_for_long(self, provider: str, entries: Sequence[PoolAddress], now_ms: int) -> bool:
        """Whether none of ``entries`` has room for long, so that mail which wants one of them takes another one."""
        refusals = (self.refusal(provider, each, now_ms) for each in entries)
        return all(each is not None and each.is_for_long(now_ms) for each in refusals)

    def renew(self, permit: Permit, now_ms: int) -> Refusal | None:
        """Another message in the session of ``permit``, or what refuses it."""
        warming = self._warming(permit.provider, permit.address)
        found = self._unused(permit.address, warming, now_ms) or self.permits.renew(permit, now_ms)
        if found is None:
            _count_warming(permit, warming)
        return found

    def recipients_max(self, permit: Permit, wanted: int, now_ms: int) -> int:
        """How many recipients the message may have, at least one; they count for the schedules from now on."""
        for each in permit.warming:
            room = each.room(self.calendar_ms(now_ms))
            if room is not None:
                wanted = min(wanted, permit.recipients + room)
        for each in permit.warming:
            each.underway += wanted - permit.recipients
        permit.recipients = wanted
        return wanted

    def finish(
        self, permit: Permit, sent: int, opened: int, now_ms: int
    ) -> tuple[Stored, Sequence[Warming]]:
        """The message of ``permit`` has ended; ``sent``: its recipients that the peer saw.

        Returns the use of windows and the schedules that have changed.
        """
        if permit is FREE or not permit.granted:
            return [], ()
        stored, warming = self.permits.end(permit, now_ms, opened=opened), permit.warming
        for each in warming:
            each.underway -= permit.recipients
            if sent:
                each.count(sent, self.calendar_ms(now_ms))
        permit.recipients, permit.warming = 0, ()
        return stored, warming if sent else ()


def _count_warming(permit: Permit, warming: Sequence[Warming]) -> None:
    """The message of ``permit`` is under way, with one recipient at first."""
    permit.recipients, permit.warming = 1, warming
    for each in warming:
        each.underway += 1


def together(refusals: Sequence[Refusal], now_ms: int) -> Refusal:
    """The refusal of mail that may leave from several addresses; each of them has refused it.

    Its limit and reason are those of the address that may be used first.
    """
    at = tuple(address_until for each in refusals for address_until in each.at)
    others = [each for each in refusals if not each.at]
    first = min(refusals, key=lambda each: _expected_ms(each, now_ms))
    for_session = any(each.for_session for each in refusals)
    return first._replace(at=at, others_ms=_first(others), for_session=for_session)


def _expected_ms(refusal: Refusal, now_ms: int) -> float:
    """When a refusal is over, for a comparison: a session may end at any moment, so before a time that is far away."""
    if refusal.until_ms != UNTIL_EVENT:
        return refusal.until_ms
    return now_ms + KEPT_MS if refusal.for_session else inf


def _first(refusals: Sequence[Refusal]) -> int:
    """When the first of them is over."""
    times = (each.until_ms for each in refusals if each.until_ms != UNTIL_EVENT)
    return min(times, default=UNTIL_EVENT)
