"""The ways from addresses to providers as a matrix, those first that need attention. Pure."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from zonemta_py.admin.requests import Row
from zonemta_py.admin.ways import is_lowered

COLUMNS_MAX = 4  # addresses beside each other; more are cells with a heading of their own
WAYS_MAX = 100


def matrix(ways: Sequence[Row], ways_max: int = WAYS_MAX) -> dict[str, Any]:
    """What the page shows of ``ways``, which are in the order of ``ways.attention``.

    ``addresses`` is empty when they are too many for columns; ``others``: how many ways are not shown, of a provider and
    of all.
    """
    shown = ways[:ways_max]
    not_shown = Counter(way["provider"] for way in ways[ways_max:])
    providers: dict[str, dict[str, Any]] = {}
    for way in shown:
        found = providers.setdefault(
            way["provider"],
            {
                "name": way["provider"], "waiting": way["waiting"], "cells": {},
                "others": not_shown[way["provider"]], "sessions": way["provider_sessions"], "sessions_max": way["provider_sessions_max"],
            },
        )  # fmt: skip
        found["cells"][way["address"]] = cell(way)
    addresses = sorted({way["address"] for way in shown}, key=_place)
    return {
        "providers": list(providers.values()),
        "addresses": addresses if len(addresses) <= COLUMNS_MAX else [],
        "others": len(ways) - len(shown),
        "counts": Counter(state_of(way) for way in ways),
    }


def cell(way: Row) -> Row:
    """A way with its ``state``, the ``uses`` of its rates, and its last ``replies`` by class."""
    uses = [{**each, "what": ""} for each in way["rates"]]
    uses += [{**each, "what": "new sessions"} for each in way["connect_rates"]]
    uses += [{**each, "what": "lowered"} for each in way["pace_rates"][-1:]]  # that of a minute
    replies = Counter(reversed(way["last_classes"]))
    return {**way, "state": state_of(way), "uses": uses, "replies": list(replies.items())}


def state_of(way: Row) -> str:
    """What the relay does on a way: suspended, paused, lowered or full."""
    if way["suspended"]:
        return "suspended"
    if way["paused_until_ms"]:
        return "paused"
    return "lowered" if is_lowered(way) else "full"


def _place(address: str) -> tuple[int, int, str]:
    """IPv4 before IPv6, by number; the name of what is no address comes first."""
    try:
        found = ip_address(address)
    except ValueError:
        return 0, 0, address
    return found.version, int(found), address
