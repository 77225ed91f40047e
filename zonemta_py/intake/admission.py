"""Who may relay, and whether the disk has space for more mail."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from zonemta_py.config.schema import Network
from zonemta_py.core import clock
from zonemta_py.routing import matching_networks

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0


def is_trusted(client_ip: str, networks: Sequence[Network]) -> bool:
    """Whether ``client_ip`` is in one of ``networks``; an empty one is not."""
    return bool(client_ip) and matching_networks(client_ip.removeprefix("::ffff:"), networks)


class DiskRoom:
    """True while the queue's disk has at least ``min_bytes`` free; checked once per second."""

    def __init__(self, directory: Path, min_bytes: int) -> None:
        self._directory = directory
        self._min_bytes = min_bytes
        self._checked_s = -CHECK_EVERY_S
        self._room = True

    def __bool__(self) -> bool:
        now_s = clock.monotonic_s()
        if now_s - self._checked_s >= CHECK_EVERY_S:
            self._checked_s = now_s
            stat = os.statvfs(self._directory)
            free = stat.f_bavail * stat.f_frsize
            had_room, self._room = self._room, free >= self._min_bytes
            if had_room and not self._room:
                log.warning(
                    "%s has %d bytes free, less than the required %d: new mail is refused with 452",
                    self._directory,
                    free,
                    self._min_bytes,
                )
            elif self._room and not had_room:
                log.warning("%s has %d bytes free again: new mail is accepted", self._directory, free)
        return self._room
