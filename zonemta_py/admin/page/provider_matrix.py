"""The paths from addresses to providers as a matrix, those first that need attention. Pure."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from zonemta_py.admin.paths import is_lowered
from zonemta_py.admin.requests import Row

COLUMNS_MAX = 4  # addresses beside each other; more are cells with a heading of their own
PATHS_MAX = 100


def matrix(paths: Sequence[Row], paths_max: int = PATHS_MAX) -> dict[str, Any]:
    """What the page shows of ``paths``, which are in the order of ``admin.paths.attention``.

    ``addresses`` is empty when they are too many for columns; ``others``: how many paths are not shown, of a provider and
    of all.
    """
    shown = paths[:paths_max]
    not_shown = Counter(path["provider"] for path in paths[paths_max:])
    providers: dict[str, dict[str, Any]] = {}
    for path in shown:
        found = providers.setdefault(
            path["provider"],
            {
                "name": path["provider"], "waiting": path["waiting"], "cells": {},
                "others": not_shown[path["provider"]], "sessions": path["provider_sessions"], "sessions_max": path["provider_sessions_max"],
            },
        )  # fmt: skip
        found["cells"][path["address"]] = cell(path)
    addresses = sorted({path["address"] for path in shown}, key=_place)
    return {
        "providers": list(providers.values()),
        "addresses": addresses if len(addresses) <= COLUMNS_MAX else [],
        "others": len(paths) - len(shown),
        "counts": Counter(state_of(path) for path in paths),
    }


def cell(path: Row) -> Row:
    """A path with its ``state``, the ``uses`` of its rates, and its last ``replies`` by class."""
    uses = [{**each, "what": ""} for each in path["rates"]]
    uses += [{**each, "what": "new sessions"} for each in path["connect_rates"]]
    uses += [{**each, "what": "lowered"} for each in path["pace_rates"][-1:]]  # that of a minute
    replies = Counter(reversed(path["last_classes"]))
    return {**path, "state": state_of(path), "uses": uses, "replies": list(replies.items())}


def state_of(path: Row) -> str:
    """What the relay does on a path: suspended, paused, lowered or full."""
    if path["suspended"]:
        return "suspended"
    if path["paused_until_ms"]:
        return "paused"
    return "lowered" if is_lowered(path) else "full"


def _place(address: str) -> tuple[int, int, str]:
    """IPv4 before IPv6, by number; the name of what is no address comes first."""
    try:
        found = ip_address(address)
    except ValueError:
        return 0, 0, address
    return found.version, int(found), address
