"""Whether the disk of the queue has space for more mail."""

import logging
import os
from pathlib import Path

from zonemta_py.core import clock

CHECK_INTERVAL_S = 1.0

log = logging.getLogger(__name__)


class DiskSpace:
    """The free space of the queue's disk, checked at most once per second."""

    def __init__(self, directory: Path, min_bytes: int) -> None:
        self._directory = directory
        self._min_bytes = min_bytes
        self._checked_s = -CHECK_INTERVAL_S
        self._sufficient = True

    def is_sufficient(self) -> bool:
        """Whether at least ``min_bytes`` are free, or the queue keeps no files here. Raises OSError."""
        now_s = clock.monotonic_s()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            self._checked_s = now_s
            try:
                stat = os.statvfs(self._directory)
            except FileNotFoundError:
                return True
            free = stat.f_bavail * stat.f_frsize
            was_sufficient, self._sufficient = self._sufficient, free >= self._min_bytes
            if was_sufficient and not self._sufficient:
                log.warning(
                    "%s has %d bytes free, less than the required %d: new mail is refused with 452",
                    self._directory,
                    free,
                    self._min_bytes,
                )
            elif self._sufficient and not was_sufficient:
                log.warning("%s has %d bytes free again: new mail is accepted", self._directory, free)
        return self._sufficient
