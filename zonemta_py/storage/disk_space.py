"""Whether the queue has space for more mail: its disk, or its server."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.storage.interface import Space

CHECK_INTERVAL_S = 1.0
SERVER_RESERVE = 10  # a server keeps at most a tenth of its memory free
INODES_MIN = 10_000  # for the files by which queued mail is settled
INODES_RESERVE = 10  # of a small file system at most a tenth stays free
NEAR = 8  # times the inodes that have to be free

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
        self.lack = ""  # why there is not enough, or empty

    def is_sufficient(self) -> bool:
        """Whether at least ``min_bytes`` and some inodes are free, or there is no limit. Raises OSError."""
        now_s = clock.monotonic_s()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            self._check()
        return not self.lack

    def _check(self) -> None:
        space, required, where = self._store_space(), self._min_bytes, "the server of the queue"
        lack = ""
        if space is not None:
            free, required = space.free, min(required, space.total // SERVER_RESERVE)
        else:
            where = str(self._directory)
            try:
                stat = os.statvfs(self._directory)
            except FileNotFoundError:
                return  # a queue without files here
            free = stat.f_bavail * stat.f_frsize
            inodes = min(INODES_MIN, stat.f_files // INODES_RESERVE)  # 0: there is no limit
            if stat.f_favail < NEAR * inodes:  # a second of mail may need them all: check again at once
                self._checked_s = -CHECK_INTERVAL_S
            if stat.f_favail < inodes:
                lack = f"fewer than {inodes} inodes are free"
        if free < required:
            lack = "less than queue.min_free_disk is free"
        had, self.lack = self.lack, lack
        if lack and not had:
            log.warning(
                "%s has %d bytes free, and required are %d: %s, new mail is refused with 452",
                where, free, required, lack,
            )  # fmt: skip
        elif had and not lack:
            log.warning("%s has %d bytes free again: new mail is accepted", where, free)
