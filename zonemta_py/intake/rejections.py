"""Records refused commands. Strangers get at most two events per address and minute, so that they cannot fill
the event log: the first refusal at once, the number of the others at the end of the minute.
"""

import asyncio
from collections.abc import Callable

from zonemta_py.core.codec import replace
from zonemta_py.core.networks import network_of
from zonemta_py.events.schema import Event, Rejected
from zonemta_py.storage.disk_space import DiskSpace

INTERVAL_S = 60.0
NETWORKS_MAX = 1000  # counted by themselves; the others of a minute are counted together


class Rejections:
    """The refusals of one listener. ``record`` writes an event.

    With less than ``disk_space`` nothing is written: refusals are only counted until there is more.
    """

    def __init__(self, record: Callable[[Event], object], disk_space: DiskSpace) -> None:
        self._record = record
        self._disk_space = disk_space
        # By network: the last one, with the count of those not recorded; None: there was one, and it was.
        self._counted: dict[str, Rejected | None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: Rejected, *, counted: bool) -> None:
        """Record ``event``, or count it with the others of its minute."""
        if not counted:
            self._record(event)
            return
        network = network_of(event.client_ip)
        if network not in self._counted and len(self._counted) >= NETWORKS_MAX:
            network = ""
        if network in self._counted or not self._disk_space.is_sufficient():
            before = self._counted.get(network)
            self._counted[network] = replace(event, count=1 + (before.count if before else 0))
        else:
            self._counted[network] = None
            self._record(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._end_minute)

    def _end_minute(self) -> None:
        self._timer = None
        self.flush()
        if self._counted:  # the disk is full
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._end_minute)

    def flush(self) -> None:
        """Record what was counted, if the disk has space."""
        if not self._disk_space.is_sufficient():
            return
        counted, self._counted = self._counted, {}
        for network, event in counted.items():
            if event is not None:
                self._record(event if network else replace(event, client_ip=""))

    def close(self) -> None:
        """Record what was counted, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
