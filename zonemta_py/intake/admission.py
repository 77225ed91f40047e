"""Who may relay, and how many sessions a client may have."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from zonemta_py.config.endpoints import Network
from zonemta_py.core.networks import network_of
from zonemta_py.routing import matching_networks

NO_SPACE = "452 4.3.1 Not enough disk space, try again later"
TOO_MANY = "421 4.3.2 Too many sessions, try again later"
TOO_MANY_OF_ADDRESS = "421 4.7.0 Too many sessions from your address"


class OpenSession(Protocol):
    """A session, as its listener knows it."""

    def close_if_idle(self) -> None:
        """End it, unless a transaction is open."""

    def abort(self) -> None:
        """Close its connection."""


def is_trusted(client_ip: str, networks: Sequence[Network]) -> bool:
    """Whether ``client_ip`` is in one of ``networks``; an empty address is not."""
    return bool(client_ip) and matching_networks(client_ip.removeprefix("::ffff:"), networks)


class SessionLimits:
    """Counts the sessions of a listener. ``sessions`` are those admitted.

    Strangers, who are neither trusted nor authenticated, have no more than a quarter from one network and
    leave an eighth to the others.
    """

    def __init__(self) -> None:
        self.sessions: set[OpenSession] = set()
        self._strangers: dict[OpenSession, str] = {}
        self._by_network: Counter[str] = Counter()

    def admit(self, session: OpenSession, client_ip: str, max_sessions: int, *, trusted: bool) -> str:
        """Count a session, once; returns why it is refused, as a reply, or an empty text."""
        if session in self.sessions:
            return ""
        if len(self.sessions) >= max_sessions:
            return TOO_MANY
        if not trusted:
            network = network_of(client_ip)
            if self._by_network[network] >= max(1, max_sessions // 4):
                return TOO_MANY_OF_ADDRESS
            if len(self._strangers) >= max(1, max_sessions - max_sessions // 8):
                return TOO_MANY
            self._strangers[session] = network
            self._by_network[network] += 1
        self.sessions.add(session)
        return ""

    def know(self, session: OpenSession) -> None:
        """The client has authenticated."""
        network = self._strangers.pop(session, None)
        if network is not None:
            self._by_network[network] -= 1
            if not self._by_network[network]:
                del self._by_network[network]

    def remove(self, session: OpenSession) -> None:
        """The session has ended."""
        self.know(session)
        self.sessions.discard(session)
