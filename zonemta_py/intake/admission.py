"""Who may relay, and how many sessions a client may have. Pure: the time is an argument.

A listener has a number of places. A session is *known* when its client is trusted or has authenticated; it has owners,
the tenant and then the user, or without AUTH the address. All others are *strangers*, who hold a place only as long as
no one else needs it:

- A known client gets the place of a stranger when none is free.
- A stranger gets the place of one whose network has at least two more, or who is there for STRESS_S, as Postfix gives
  clients ten seconds when its processes are all in use (smtpd_timeout under stress). A network in which someone logged in
  lately comes before others.
- An owner may have SHARE times the places that are left, so that one alone leaves an eighth, and k of them an equal
  share each and one to k + 1 (the dynamic thresholds of Choudhury and Hahne, "Dynamic queue length thresholds for
  shared-memory packet switches", 1998). When nothing is left, a client whose owner has less gets the place of an idle
  session of the owner who has most.

A connection of a proxy has no place before its PROXY header names the client: it belongs to the proxy, and neither a
silent one nor that of a stranger takes anything from a client.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeVar

from zonemta_py.config.endpoints import Network
from zonemta_py.routing import matching_networks

NO_SPACE = "452 4.3.1 Not enough disk space, try again later"
TOO_MANY = "421 4.3.2 Too many sessions, try again later"
TOO_MANY_OF_ADDRESS = "421 4.7.0 Too many sessions from your address"
TOO_MANY_OF_OWNER = "421 4.7.0 Too many sessions of"
STRESS_S = 10.0
SHARES = (7, 3)  # of the first owner, and of a user or address within a tenant

K = TypeVar("K")

Owners = tuple[tuple[str, str], ...]  # kind and name; the tenant, if there is one, first


class OpenSession(Protocol):
    """A session, as its listener knows it."""

    @property
    def busy(self) -> bool:
        """Whether a transaction is open."""

    def close_if_idle(self) -> None:
        """End it, unless a transaction is open."""

    def give_up(self) -> None:
        """End it: another client needs its place."""

    def abort(self) -> None:
        """Close its connection."""


class Stranger(NamedTuple):
    """Since when a client that is not known has a session; ``is_familiar``: someone logged in from its network lately."""

    network: str
    is_familiar: bool
    since_s: float


def is_trusted(client_ip: str, networks: Sequence[Network]) -> bool:
    """Whether ``client_ip`` is in one of ``networks``; an empty address is not."""
    return bool(client_ip) and matching_networks(client_ip.removeprefix("::ffff:"), networks)


class SessionLimits:
    """The sessions of a listener, and who has its places. ``end`` ends one that loses its place.

    Strangers have no more than a quarter of the places from one network and leave an eighth to the others.
    """

    def __init__(self, end: Callable[[OpenSession], None]) -> None:
        self._end = end
        self._known: dict[OpenSession, Owners] = {}  # the oldest first
        self._strangers: dict[OpenSession, Stranger] = {}  # the oldest first
        self._owned: dict[tuple[str, str], int] = {}
        self._by_network: dict[str, int] = {}  # of strangers
        self._unnamed: dict[OpenSession, None] = {}  # of proxies, without a place; the oldest first

    @property
    def sessions(self) -> Collection[OpenSession]:
        """All that are open: those that have a place, and those of proxies that have named no client yet."""
        return [*self._known, *self._strangers, *self._unnamed]

    def __len__(self) -> int:
        """Return how many places are taken."""
        return len(self._known) + len(self._strangers)

    def __contains__(self, session: OpenSession) -> bool:
        return session in self._known or session in self._strangers

    def admit_known(self, session: OpenSession, owners: Owners, places: int) -> str:
        """Give a place to a client that is known, once; returns why it gets none, as a reply, or an empty text."""
        if session in self:
            return ""
        refusal = self._excess(owners, places)
        if refusal:
            return refusal
        if len(self._known) + len(self._strangers) >= places:
            victim = self._first_stranger() or self._idle_of_most(owners)
            if victim is None:
                return TOO_MANY
            self._take_from(victim)
        self._known[session] = owners
        owned = self._owned
        for owner in owners:
            owned[owner] = owned.get(owner, 0) + 1
        return ""

    def admit_stranger(self, session: OpenSession, client: Stranger, places: int) -> str:
        """The same for a client that is not known."""
        if session in self._strangers or session in self._known:
            return ""
        count = self._by_network.get(client.network, 0)
        if count >= max(1, places // 4):
            return TOO_MANY_OF_ADDRESS
        for_strangers = max(1, places - places // 8)
        if len(self) >= places or len(self._strangers) >= for_strangers:
            victim = self._weaker_than(client, count)
            if victim is None:
                return TOO_MANY
            self._take_from(victim)
        self._strangers[session] = client
        self._by_network[client.network] = self._by_network.get(client.network, 0) + 1
        return ""

    def admit_unnamed(self, session: OpenSession, places: int) -> None:
        """Keep a connection of a proxy until its client is known; of more than ``places`` the oldest ends."""
        if len(self._unnamed) >= places:
            self._take_from(next(iter(self._unnamed)))
        self._unnamed[session] = None

    def know(self, session: OpenSession, owners: Owners, places: int) -> str:
        """The client of ``session`` has authenticated; returns why it may not stay, as a reply, or an empty text."""
        refusal = self._excess(owners, places)
        if session in self and not refusal:
            self.remove(session)
            return self.admit_known(session, owners, places)
        return refusal

    def remove(self, session: OpenSession) -> None:
        """The session has ended, or was none."""
        owners = self._known.pop(session, None)
        if owners is not None:
            for owner in owners:
                _decrement(self._owned, owner)
            return
        stranger = self._strangers.pop(session, None)
        if stranger is not None:
            _decrement(self._by_network, stranger.network)
            return
        self._unnamed.pop(session, None)

    def _excess(self, owners: Owners, places: int) -> str:
        """Why an owner may have no further session, as a reply; empty if it may."""
        free = places - len(self._known)
        for owner, share in zip(owners, SHARES, strict=False):
            count = self._owned.get(owner, 0)
            if free > 0 and count and count >= share * free:
                kind, name = owner
                return f"{TOO_MANY_OF_OWNER} {kind} {name}, try again later"
        return ""

    def _take_from(self, session: OpenSession) -> None:
        self.remove(session)
        self._end(session)

    def _first_stranger(self) -> OpenSession | None:
        """The oldest of the network that has most, familiar ones last; None without strangers."""
        ranks = {each: self._rank(client) for each, client in self._strangers.items()}
        return max(ranks, key=lambda each: ranks[each], default=None)

    def _weaker_than(self, client: Stranger, count: int) -> OpenSession | None:
        """Whose place a stranger gets whose network has ``count``: as ``_first_stranger``, of those that it may take."""
        ranks = {
            each: self._rank(other)
            for each, other in self._strangers.items()
            if (client.is_familiar and not other.is_familiar)
            or (
                client.is_familiar == other.is_familiar
                and (
                    self._by_network[other.network] > count + 1
                    or client.since_s - other.since_s >= STRESS_S
                )
            )
        }
        return max(ranks, key=lambda each: ranks[each], default=None)

    def _rank(self, client: Stranger) -> tuple[bool, int]:
        return not client.is_familiar, self._by_network[client.network]

    def _idle_of_most(self, owners: Owners) -> OpenSession | None:
        """The oldest idle session of the owner with most, if that is at least two more than ``owners`` have."""
        own = max((self._owned.get(owner, 0) for owner in owners[:1]), default=0)
        found, most = None, own + 1
        for session, others in self._known.items():
            count = max((self._owned[owner] for owner in others[:1]), default=0)
            if count > most and not session.busy:
                found, most = session, count
        return found


def _decrement(counts: dict[K, int], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
