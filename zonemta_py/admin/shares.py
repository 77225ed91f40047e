"""Who may have how many of something at the same time: requests, watchers of events. Pure."""

from typing import NamedTuple

from zonemta_py.admin.tokens import Role, Token
from zonemta_py.core.networks import network_of

SHARE = 3  # times what is left: one owner alone has three quarters


class Owner(NamedTuple):
    """Who asks: an operator, a token for less, the tenant of a token, or an address without a token."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


OPERATOR, TOKEN, TENANT, ADDRESS = "operator", "token", "tenant", "address"
TOGETHER = (TENANT, ADDRESS)  # all tenants together have half, and so have all without a token


def owner_of(token: Token | None, client_ip: str | None) -> Owner:
    """The owner of what a request asks for."""
    if token is None:
        return Owner(ADDRESS, network_of(client_ip or "local"))
    if token.tenant:
        return Owner(TENANT, token.tenant)
    return Owner(OPERATOR if token.role is Role.ADMIN else TOKEN, token.name)


class Shares:
    """``places``, of which the last ``reserve`` are for operators.

    An owner may have SHARE times what is left, so that there is something left for another one.
    """

    def __init__(self, places: int, reserve: int) -> None:
        self._places = places
        self._reserve = reserve
        self._counts: dict[Owner, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def take(self, owner: Owner) -> bool:
        """Give a place to ``owner``; False if it may have none."""
        places = self._places - (self._reserve if owner.kind != OPERATOR else 0)
        free = places - len(self)
        together = sum(count for each, count in self._counts.items() if each.kind == owner.kind)
        if owner.kind in TOGETHER:
            free = min(free, places // 2 - together)
        count = self._counts.get(owner, 0)
        if free <= 0 or (count and count >= SHARE * free):
            return False
        self._counts[owner] = count + 1
        return True

    def give_back(self, owner: Owner) -> None:
        """A place of ``owner`` is free again."""
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]
