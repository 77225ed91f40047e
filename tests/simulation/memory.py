"""What a relay with an empty queue still has in memory: what is fixed, and what its peers need, but nothing of mail."""

import gc
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

from zonemta_py import Relay

OF_MAIL = ("queue", "delivery", "transports", "intake", "dequeue", "submit")
OF_PEERS = ("egress",)  # a few for each address and host
MOST = {**dict.fromkeys(OF_MAIL, 16), **dict.fromkeys(OF_PEERS, 48)}  # of one class
# They have limits of their own, of thousands.
CACHES = ("zonemta_py.delivery.dkim._Signed", "zonemta_py.delivery.endpoints.Endpoint")
_SKIPPED = (
    types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType,
)  # fmt: skip


def reachable(root: object) -> Counter[type]:
    """The objects of our own classes that ``root`` leads to, by class. Not by the loop, and what tests have made."""
    seen, found = {id(root)}, [root]
    counts = Counter[type]()
    for each in found:
        if type(each).__module__.startswith("zonemta_py."):
            counts[type(each)] += 1
        for other in gc.get_referents(each):
            if id(other) not in seen and not _is_skipped(other):
                seen.add(id(other))
                found.append(other)
    return counts


def _is_skipped(found: Any) -> bool:
    return isinstance(found, _SKIPPED) or type(found).__module__.startswith(
        ("asyncio", "_asyncio", "tests")
    )


def judge_memory(relay: Relay) -> Iterator[str]:
    """Classes of which a relay has more objects than one without mail."""
    for kind, count in reachable(relay).items():
        package, name = kind.__module__.split(".")[1], f"{kind.__module__}.{kind.__qualname__}"
        if count > MOST.get(package, count) and name not in CACHES:
            yield f"{count} objects of {name}, and no mail"
