"""Limits of what tenants, users and hosts may submit. Values are frozen."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from zonemta_py.config.units import DAY, ByteRate, Rate, number
from zonemta_py.core.networks import network_of

LONGEST_S = 31 * DAY


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """How much is accepted in a time; of several rates all hold. ``sessions``: those that send mail.

    ``open_sessions``: how many SMTP sessions may be open at the same time.
    """

    sessions: tuple[Rate, ...] = ()
    messages: tuple[Rate, ...] = ()
    recipients: tuple[Rate, ...] = ()
    bytes: tuple[ByteRate, ...] = ()
    open_sessions: int | None = number(None, 1, 1_000_000)

    def rates(self) -> Iterator[tuple[str, Rate]]:
        """What is limited, by the name of its field, and how."""
        for name in _RATES:
            for rate in getattr(self, name):
                yield name, rate

    @property
    def recipients_max(self) -> int | None:
        """How many recipients a message may have, if it is to be accepted at any time; None: any number."""
        return min((rate.events for rate in self.recipients), default=None)


_RATES = [each.name for each in fields(IntakeLimits) if each.name != "open_sessions"]
NO_LIMITS = IntakeLimits()


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of every user, and of every client by its address: there each tenant, or user of none, has its own."""

    user: IntakeLimits = NO_LIMITS
    address: IntakeLimits = NO_LIMITS


class Subject(NamedTuple):
    """What limits apply to: ``kind`` is tenant, user or address."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.capitalize()} {self.name}"


class LimitRules:
    """Which limits apply to mail."""

    def __init__(self, tenants: Mapping[str, IntakeLimits], clients: ClientLimits) -> None:
        self._tenants = {name: limits for name, limits in tenants.items() if limits != NO_LIMITS}
        self._user = clients.user if clients.user != NO_LIMITS else None
        self._address = clients.address if clients.address != NO_LIMITS else None
        self.empty = not self._tenants and self._user is None and self._address is None
        every = (*self._tenants.values(), clients.user, clients.address)
        self.has_open_sessions = any(each.open_sessions is not None for each in every)

    def of(self, tenant: str, user: str, client_ip: str) -> list[tuple[Subject, IntakeLimits]]:
        """The limits of a client; ``client_ip`` is empty for a program."""
        found = []
        if self.empty:
            return []
        if tenant in self._tenants:
            found.append((Subject("tenant", tenant), self._tenants[tenant]))
        if self._user is not None and user:
            found.append((Subject("user", user), self._user))
        if self._address is not None and client_ip:
            # Behind a proxy, or on one host, clients of several owners have one address.
            owner = f" of tenant {tenant}" if tenant else f" of user {user}" if user else ""
            found.append((Subject("address", network_of(client_ip) + owner), self._address))
        return found

    def limits_of(self, subject: Subject) -> IntakeLimits | None:
        """The limits of ``subject``, if it has any."""
        if subject.kind == "tenant":
            return self._tenants.get(subject.name)
        return self._user if subject.kind == "user" else self._address
