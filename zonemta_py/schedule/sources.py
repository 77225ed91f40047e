"""Which of a pool's addresses a message leaves from. Pure.

Weighted, and stable per message, so that a greylisting server sees the retry come from where the
first attempt came.
"""

from collections.abc import Sequence
from zlib import crc32

from zonemta_py.config.schema import PoolAddress


def choose_source(pool: Sequence[PoolAddress], message: str, target_ip: str) -> PoolAddress | None:
    """The address of ``pool`` for ``message`` towards ``target_ip``, or None if no family matches."""
    version = 6 if ":" in target_ip else 4
    fitting = [
        entry
        for entry in pool
        if entry.weight and (entry.address is None or (6 if ":" in entry.address else 4) == version)
    ]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    ticket = crc32(message.encode()) % sum(entry.weight for entry in fitting)
    for entry in fitting:
        ticket -= entry.weight
        if ticket < 0:
            return entry
    raise AssertionError("a ticket lies below the sum of the weights")
