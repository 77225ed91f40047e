"""Who may relay, and whether there is room: decisions that a session asks for."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from zonemta_py.config.schema import Network
from zonemta_py.core import clock
from zonemta_py.routing import matching_networks

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


def is_trusted(client_ip: str, networks: Sequence[Network]) -> bool:
    """Whether this client may relay without AUTH."""
    return bool(client_ip) and matching_networks(client_ip.removeprefix("::ffff:"), networks)


class DiskRoom:
    """Whether the queue's disk has ``least_bytes`` free; asked of the system once a second."""

    def __init__(self, directory: Path, least_bytes: int) -> None:
        self._directory = directory
        self._least = least_bytes
        self._looked_s = -LOOK_EVERY_S
        self._room = True

    def __bool__(self) -> bool:
        now_s = clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            stat = os.statvfs(self._directory)
            free = stat.f_bavail * stat.f_frsize
            had_room, self._room = self._room, free >= self._least
            if had_room and not self._room:
                log.warning(
                    "%s has %d bytes free, %d are wanted: new mail gets 452",
                    self._directory,
                    free,
                    self._least,
                )
            elif self._room and not had_room:
                log.warning("%s has %d bytes free again: new mail is taken", self._directory, free)
        return self._room
