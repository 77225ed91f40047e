"""Whether the queue has space for more mail: its disk, or its server."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.storage.interface import Space

CHECK_INTERVAL_S = 1.0
SERVER_RESERVE = 10  # a server keeps at most a tenth of its memory free

log = logging.getLogger(__name__)


def _unlimited() -> Space | None:
    return None


class DiskSpace:
    """The free space of the queue, checked at most once per second.

    ``store_space``: see ``Store.space``; None counts the disk of ``directory``.
    """

    def __init__(
        self, directory: Path, min_bytes: int, store_space: Callable[[], Space | None] = _unlimited
    ) -> None:
        self._directory = directory
        self._min_bytes = min_bytes
        self._store_space = store_space
        self._checked_s = -CHECK_INTERVAL_S
        self._sufficient = True

    def is_sufficient(self) -> bool:
        """Whether at least ``min_bytes`` are free, or there is no limit. Raises OSError."""
        now_s = clock.monotonic_s()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            self._check()
        return self._sufficient

    def _check(self) -> None:
        space, required, where = self._store_space(), self._min_bytes, "the server of the queue"
        if space is not None:
            free, required = space.free, min(required, space.total // SERVER_RESERVE)
        else:
            where = str(self._directory)
            try:
                stat = os.statvfs(self._directory)
            except FileNotFoundError:
                return  # a queue without files here
            free = stat.f_bavail * stat.f_frsize
        was_sufficient, self._sufficient = self._sufficient, free >= required
        if was_sufficient and not self._sufficient:
            log.warning(
                "%s has %d bytes free, less than the required %d: new mail is refused with 452",
                where, free, required,
            )  # fmt: skip
        elif self._sufficient and not was_sufficient:
            log.warning("%s has %d bytes free again: new mail is accepted", where, free)
