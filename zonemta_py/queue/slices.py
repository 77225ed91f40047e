"""Rows of the store a limited number at a time, so that other work may be done between them."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store

AT_ONCE = 1000


async def row_slices(store: Store, prefix: bytes) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """The keys that begin with ``prefix``, and their values; those of a slice may be deleted."""
    cursor, end = prefix, keys.end_of(prefix)
    while True:
        found = list(islice(store.scan(cursor, end), AT_ONCE))
        if found:
            yield found
        if len(found) < AT_ONCE:
            return
        cursor = found[-1][0] + b"\x00"
        await asyncio.sleep(0)
