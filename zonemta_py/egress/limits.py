"""The limits of sessions and messages from one of our addresses to a provider. Pure; times are unix ms.

``Permits`` counts what is under way on each ``EgressPath``: of a pair of provider and address, of all addresses with a provider,
and of an address with all providers. ``EgressLimits`` adds what is not counted by sessions and rates: the schedules of new
addresses, and addresses that an operator has suspended. Both answer with a ``Permit``, or the ``Refusal`` that says which limit
refuses, and until when; waiting is the work of ``waiting``.

States of a permit, which is the right to one session and to a message in it:

- granted (``take``, ``renew``): a message counts from then on, so the limits hold over all zones and processes;
- begun (``begin``): it is sent, in a new session or in one that was idle; places for a session that was not opened are given back;
- ended (``finish``): the message has its answer, or was never sent; the session is still the worker's;
- released (``release``): the worker has left the session, which may stay open without one.

Invariants: ``EgressPath.sessions`` are the permits that are not released; ``open`` is never less. ``FREE`` is the permit of a
worker that nothing limits: it counts nowhere. What ends calls ``on_room``, which wakes what waits.

Callers: ``SharedEgress`` is an ``EgressLimits``, one for all zones; ``ZoneEgress`` takes permits for workers and renews them for
messages, ``MessageEgress`` takes another one where a message has to leave from another address.

    permit = limits.take("google", [PoolAddress("192.0.2.1")], now_ms)
    if isinstance(permit, Refusal): ...  # permit.limit, permit.until_ms
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf

from zonemta_py.config.providers import NO_LIMITS, ProviderLimits
from zonemta_py.config.sending import NO_ADDRESS_LIMITS, AddressLimits, PoolAddress
from zonemta_py.egress.paths import (
    KEPT_MS,
    UNTIL_EVENT,
    EgressPath,
    Limit,
    RateUse,
    RateWindows,
    Refusal,
)
from zonemta_py.egress.sources import source_name
from zonemta_py.egress.warmup import DAY_MS, Warming, WarmUp

Stored = list[tuple[str, str, str, int, int, int]]  # kind, provider, address, length (ms), slot, use
ANY = ""  # the sum over all addresses
MESSAGES, CONNECTS = "messages", "connects"
FORGET_AT_ONCE = 1000
ANSWERING_MS = 60_000  # a provider that was sent a message so long ago answers
REST_MS = 2000  # without a worker: then others may have the idle sessions of an address


class Permit:
    """The right of a worker to use one session, and to send one message in it. ``paths``: where both are counted.

    ``connects``: how many new sessions it may open; -1: any number. ``gave_back``: it has opened none, so that others may.
    """

    __slots__ = (
        "address", "connects", "gave_back", "granted", "messages", "openings", "paths", "provider",
        "recipients", "stored", "warming",
    )  # fmt: skip

    def __init__(self, provider: str, address: str, paths: Sequence[EgressPath]) -> None:
        self.provider = provider
        self.address = address
        self.paths = paths
        self.messages: list[tuple[EgressPath, RateWindows, RateUse]] = []
        self.openings: list[tuple[EgressPath, RateWindows, RateUse]] = []
        self.connects = -1
        self.gave_back = False
        self.granted = False  # a message, which has not ended
        self.recipients = 0  # of it, that count for the schedules
        self.warming: Sequence[Warming] = ()
        self.stored: Stored = []

    @property
    def sessions_max(self) -> tuple[int, int]:
        """How many sessions may be open at the provider, from the address and from all; -1: any number."""
        pair, whole, _ = self.paths
        return _number(pair.most()), _number(whole.most())


FREE = Permit("", "", ())  # of a worker that nothing limits


class Permits:
    """All sessions and messages that are under way. ``on_room(provider, address)`` is called when something has ended there."""

    def __init__(self, on_room: Callable[[str, str], None]) -> None:
        self._paths: dict[tuple[str, str], EgressPath] = {}
        self._on_room = on_room
        self._limits_of: Callable[[str], ProviderLimits] = lambda provider: NO_LIMITS
        self._addresses: dict[str, AddressLimits] = {}

    def configure(
        self, limits_of: Callable[[str], ProviderLimits], addresses: dict[str, AddressLimits]
    ) -> None:
        """Use other limits; what is under way, and was used, continues to count."""
        self._limits_of, self._addresses = limits_of, addresses
        for path in self._paths.values():
            self._apply(path)

    def _apply(self, path: EgressPath) -> None:
        if not path.provider:
            own = self._addresses.get(path.address, NO_ADDRESS_LIMITS)
            path.limit(own.sessions, own.rate, own.connect_rate)
            return
        limits = self._limits_of(path.provider)
        if path.address:
            path.limit(limits.sessions_per_address, limits.rate, limits.connect_rate)
        else:
            path.limit(limits.sessions, (), ())

    def path(self, provider: str, address: str) -> EgressPath:
        """The state of a pair; of a provider, or an address, if the other is empty."""
        found = self._paths.get((provider, address))
        if found is None:
            found = self._paths[provider, address] = EgressPath(provider, address)
            self._apply(found)
        return found

    def paths(self) -> Iterator[EgressPath]:
        """All of them."""
        return iter(list(self._paths.values()))

    def forget_unused(self, now_ms: int) -> Iterator[None]:
        """Drop what has nothing under way, and of which nothing counts any more; other work may be done at each step."""
        for number, key in enumerate(list(self._paths), 1):
            path = self._paths.get(key)
            if path is not None and not path.in_use(now_ms):
                del self._paths[key]
            if number % FORGET_AT_ONCE == 0:
                yield

    def _parts(self, provider: str, address: str) -> tuple[EgressPath, EgressPath, EgressPath]:
        return self.path(provider, address), self.path(provider, ANY), self.path("", address)

    def is_answering(self, provider: str, now_ms: int) -> bool:
        """True if a message began lately in a session with ``provider``."""
        whole = self._paths.get((provider, ANY))
        return whole is not None and bool(whole.begun_ms) and now_ms < whole.begun_ms + ANSWERING_MS

    def is_limited(self, provider: str, address: str) -> bool:
        """True if a message from ``address`` to ``provider`` may ever be refused."""
        if self._limits_of(provider) != NO_LIMITS:
            return True
        if self._addresses.get(address, NO_ADDRESS_LIMITS) != NO_ADDRESS_LIMITS:
            return True
        known = (self._paths.get((provider, each)) for each in (address, ANY))
        return any(path is not None and path.is_limited for path in known)

    def refusal(
        self, provider: str, address: str, now_ms: int, *, session: bool = True
    ) -> Refusal | None:
        """The refusal of a message from ``address`` to ``provider`` now, of several limits the longest; None: it may be sent."""
        return self._refusal(self._parts(provider, address), now_ms, session=session)

    def _refusal(self, parts: Sequence[EgressPath], now_ms: int, *, session: bool) -> Refusal | None:
        latest: Refusal | None = None
        pair, whole, _ = parts
        new = session and pair.sessions >= pair.open
        for path in parts:
            found = path.refuse(now_ms, session=session, new=new)
            if found is not None and (latest is None or found.until_ms > latest.until_ms):
                latest = found
        return latest or (_displaces(pair, whole, now_ms) if new else None)

    def take(self, provider: str, address: str, now_ms: int) -> Permit | Refusal:
        """A session with a message in it, which ``release`` ends; or what refuses it."""
        paths = self._parts(provider, address)
        refused = self._refusal(paths, now_ms, session=True)
        if refused is not None:
            return refused
        permit, pair = Permit(provider, address, paths), paths[0]
        for path in paths:
            path.sessions += 1
        self._set_open(pair, max(pair.open, pair.sessions))
        self._grant(permit, now_ms)
        return permit

    def renew(self, permit: Permit, now_ms: int) -> Refusal | None:
        """Another message in the session of ``permit``, whose message has ended; or what refuses it."""
        refused = self._refusal(permit.paths, now_ms, session=False)
        if refused is None:
            self._grant(permit, now_ms)
        return refused

    def _grant(self, permit: Permit, now_ms: int) -> None:
        permit.granted = True
        permit.paths[0].used_ms = now_ms
        limited: list[tuple[EgressPath, RateWindows]] = []
        for path in permit.paths:
            windows = path.messages
            if windows is not None:
                permit.messages.append((path, windows, windows.grant(now_ms)))
            windows = path.ceiling.messages
            if windows is not None:
                permit.messages.append((path, windows, windows.grant(now_ms)))
            if path.connects is not None:
                limited.append((path, path.connects))
        permit.connects = -1
        if limited:
            permit.connects = int(all(windows.wait_ms(now_ms) == 0 for _, windows in limited))
        if permit.connects > 0:
            permit.openings += [(path, windows, windows.grant(now_ms)) for path, windows in limited]

    def begin(self, permit: Permit, now_ms: int, opened: int) -> None:
        """The message is sent now, in a session that is new if ``opened``."""
        permit.paths[1].begun_ms = now_ms
        for _, windows, use in permit.messages:
            windows.begin(use, now_ms)
        if permit.openings:
            self._end_openings(permit, now_ms, opened)

    def _end_openings(self, permit: Permit, now_ms: int, opened: int) -> None:
        """Count the openings, or give back their places in the rates."""
        for path, windows, use in permit.openings:
            if opened:
                windows.begin(use, now_ms)
                permit.stored += _named(CONNECTS, path, windows.end(use, now_ms))
            else:
                windows.cancel(use)
        permit.openings.clear()
        permit.gave_back = not opened

    def end(self, permit: Permit, now_ms: int, *, opened: int = 0) -> Stored:
        """The message has its answer, or was never sent. Returns what is stored, for the batch that settles it."""
        if permit.openings:
            self._end_openings(permit, now_ms, opened)
        cancelled, permit.gave_back = permit.gave_back, False
        for path, windows, use in permit.messages:
            if use.sent_ms:
                ended = windows.end(use, now_ms)
                if windows is path.messages:  # those of the controller are not stored
                    for length_ms, slot, used in ended:
                        permit.stored.append(
                            (MESSAGES, path.provider, path.address, length_ms, slot, used)
                        )
            else:
                windows.cancel(use)
                cancelled = True
        permit.messages.clear()
        permit.granted = False
        permit.paths[0].used_ms = now_ms
        if cancelled:
            self._on_room(permit.provider, permit.address)
        stored, permit.stored = permit.stored, []
        return stored

    def release(self, permit: Permit) -> None:
        """The worker has left the session, which may stay open without one."""
        for path in permit.paths:
            path.sessions -= 1
        pair = permit.paths[0]
        self._set_open(pair, min(pair.open, pair.sessions + pair.idle))
        self._on_room(permit.provider, permit.address)

    def set_idle(self, provider: str, address: str, idle: int) -> bool:
        """This number of sessions is open without a worker. Returns whether that makes room."""
        pair = self._paths.get((provider, address)) or self.path(provider, address)
        before, pair.idle = pair.open, idle
        sessions = pair.sessions + idle
        if sessions < before:
            self._set_open(pair, sessions)
            return True
        if idle > before:
            self._set_open(pair, idle)
        return False

    def _set_open(self, pair: EgressPath, number: int) -> None:
        if number != pair.open:
            whole = self.path(pair.provider, ANY)
            if not pair.open:
                whole.members[pair] = None
            elif not number:
                del whole.members[pair]
            whole.open += number - pair.open
            pair.open = number

    def restore(self, stored: Sequence[tuple[str, str, str, int, int, int]], now_ms: int) -> None:
        """Count what an earlier run stored."""
        for kind, provider, address, length_ms, slot, used in stored:
            path = self.path(provider, address)
            windows = path.messages if kind == MESSAGES else path.connects
            if windows is not None:
                windows.restore(length_ms, slot, used, now_ms)


def _displaces(pair: EgressPath, whole: EgressPath, now_ms: int) -> Refusal | None:
    """The refusal of a new session in the place of an idle one of another address, which would be missed there soon.

    An address that has less than its share may have it; one without a worker for REST_MS has no share.
    """
    most = whole.most()
    if most is None or whole.open < most:
        return None
    sharing, until_ms = 1, UNTIL_EVENT
    for each in whole.members:
        if each is pair:
            continue
        rests_ms = each.used_ms + REST_MS
        if each.sessions or now_ms < rests_ms:
            sharing += 1
        if not each.sessions and now_ms < rests_ms and (until_ms == UNTIL_EVENT or rests_ms < until_ms):
            until_ms = rests_ms
    if pair.sessions < max(1, most // sharing):
        return None
    reason = f"all {most} sessions with {whole} are open"
    return Refusal(Limit.PROVIDER_SESSIONS, until_ms, reason, for_session=True)


def _number(most: int | None) -> int:
    return -1 if most is None else most


def _named(kind: str, path: EgressPath, windows: Sequence[tuple[int, int, int]]) -> Stored:
    return [(kind, path.provider, path.address, *each) for each in windows]


class EgressLimits:
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
        """True if anything may refuse mail from the address ``entry`` to ``provider``."""
        name = source_name(entry)
        return bool(
            self.permits.is_limited(provider, name)
            or self.warmup.of(name, provider)
            or self.stopped_address(name)
        )

    def refusal(
        self, provider: str, entry: PoolAddress, now_ms: int, *, session: bool = True
    ) -> Refusal | None:
        """The refusal of a message from the address ``entry`` to ``provider`` now; None: it may be sent."""
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
        return merge_refusals(refusals, now_ms)

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
        """True if none of ``entries`` has room for long, so that mail which wants one of them takes another one."""
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


def merge_refusals(refusals: Sequence[Refusal], now_ms: int) -> Refusal:
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
