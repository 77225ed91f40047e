"""The destinations of a zone: under which name mail for a domain waits, and the settings of each. Pure."""

from dataclasses import replace

from zonemta_py.config.zones import DELIVERY_KEYS, DestinationSettings, Zone

ALL = "*"  # the destination of all mail that the smarthosts of a zone get
CACHE_MAX = 10_000


class DestinationTable:
    """What ``destinations`` of ``zone`` says about each domain; the first item that matches counts.

    The name of a destination is the domain. All mail for the smarthosts of the zone waits at ``*``, that for those
    of an item at ``*:`` and the item's first domain: a name that no change of the smarthosts changes (decision 68).
    """

    def __init__(self, zone: Zone) -> None:
        own = replace(zone, connections_per_domain=zone.connections) if zone.smarthost else zone
        self._own = own
        self.zones = (own, *(_merged(zone, item) for item in zone.destinations))
        self._items = zone.destinations
        self._names = (ALL, *(f"{ALL}:{item.domains[0]}" for item in self._items))
        self._by_domain: dict[str, int] = {}

    def name_of(self, domain: str) -> str:
        """The destination at which mail for ``domain`` waits."""
        if not self._items:
            return ALL if self._own.smarthost else domain
        number = self.number(domain)
        if not self.zones[number].smarthost:
            return domain
        return self._names[number]

    def settings(self, destination: str) -> Zone:
        """The zone with the settings for one of its destinations; its ``connections_per_domain`` is the limit."""
        return self.zones[self.number(destination)] if self._items else self._own

    def number(self, destination: str) -> int:
        """The place of its settings in ``zones``."""
        if not self._items:
            return 0
        found = self._by_domain.get(destination)
        if found is None:
            if len(self._by_domain) >= CACHE_MAX:
                self._by_domain.clear()
            found = self._by_domain[destination] = self._find(destination)
        return found

    def _find(self, destination: str) -> int:
        if destination.startswith(ALL):
            return self._names.index(destination) if destination in self._names else 0
        matching = (number for number, item in enumerate(self._items, 1) if item.matches(destination))
        return next(matching, 0)


def _merged(zone: Zone, item: DestinationSettings) -> Zone:
    connections = item.connections
    if connections is None:
        connections = zone.connections if item.smarthost else zone.connections_per_domain
    own = {key: getattr(item, key) for key in DELIVERY_KEYS}
    return replace(zone, connections_per_domain=connections, **own)
