"""Records refused commands, at most two events in a minute for each client, command and code, so that no client can fill the
event log: the first refusal at once, the number of the others at the end of the minute.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from zonemta_py.core.codec import replace
from zonemta_py.core.networks import network_of
from zonemta_py.events.schema import Event, Rejected
from zonemta_py.storage.disk_space import DiskSpace

INTERVAL_S = 60.0
KINDS_MAX = 1000  # of strangers, and of others, counted by themselves; the others of a minute are counted together


class _Kind(NamedTuple):
    """What is counted by itself. ``owner``: a user, or the network of a client; empty: of all beyond KINDS_MAX."""

    is_known: bool
    owner: str
    command: str
    code: int


class Rejections:
    """The refusals of one listener. ``record`` writes an event.

    With less than ``disk_space`` nothing is written: refusals are only counted until there is more.
    """

    def __init__(self, record: Callable[[Event], object], disk_space: DiskSpace) -> None:
        self._record = record
        self._disk_space = disk_space
        # The last one, with the count of those not recorded; None: there was one, and it was.
        self._counted: dict[_Kind, Rejected | None] = {}
        self._kinds: Counter[bool] = (
            Counter()
        )  # of known clients and of strangers: neither takes the other's
        self._timer: asyncio.TimerHandle | None = None

    def add(self, event: Rejected, *, user: str, is_known: bool) -> None:
        """Record ``event``, or count it with the others of its minute.

        ``user``: the authenticated one, if any. ``is_known``: the client may relay.
        """
        kind = _Kind(is_known, user or network_of(event.client_ip), event.command, event.code)
        if kind not in self._counted and self._kinds[is_known] >= KINDS_MAX:
            kind = kind._replace(owner="")
        if kind not in self._counted:
            self._kinds[is_known] += 1
        if kind in self._counted or not self._disk_space.is_sufficient():
            before = self._counted.get(kind)
            self._counted[kind] = replace(event, count=1 + (before.count if before else 0))
        else:
            self._counted[kind] = None
            self._record(event)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._end_minute)

    def add_password(self, event: Rejected) -> None:
        """Record a wrong password: their number is limited, and each has its name in the event log."""
        self._record(event)

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
        self._kinds.clear()
        for kind, event in counted.items():
            if event is not None:
                self._record(event if kind.owner else replace(event, client_ip="", user="", tenant=""))

    def close(self) -> None:
        """Record what was counted, and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
