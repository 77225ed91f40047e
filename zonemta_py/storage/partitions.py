"""What several relays have in common that keep their queues in one place (decision 52).

Each has a part of its own, named after its machine, and a lease of that part which it renews. Nobody else
reads or writes there as long as the lease lasts; a write by a relay that has lost it is refused.
"""

import logging
import os
import secrets
import socket
from pathlib import Path
from threading import Event
from typing import Protocol

from zonemta_py.config.schema import SharedQueue
from zonemta_py.core.errors import QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store

log = logging.getLogger(__name__)

WAIT_S = 0.5  # between two looks at a lease that will run out
SLACK_S = 5.0  # that clocks and servers take beyond it
SPARES_MAX = 100  # names tried by a relay whose own part is being delivered by another

MAIL = (keys.MESSAGE, keys.OUTBOX)  # what another relay has to see to


class SharedStorage(Protocol):
    """Where the parts are. Every call blocks; LocalError when the place cannot be reached."""

    def open(self, name: str) -> Store:
        """A part, made if need be. Raises QueueLocked while somebody has its lease."""

    def orphans(self) -> list[str]:
        """Parts with mail or facts in them whose lease nobody has: the truth."""

    def notice(self, wait_s: float) -> str | None:
        """The name of a part that was left with mail in it, if one comes within ``wait_s``: a hint."""

    def close(self) -> None:
        """No call follows."""


def own_name(settings: SharedQueue) -> str:
    """The name of this relay's part."""
    return settings.name or socket.getfqdn()


def open_own(place: SharedStorage, settings: SharedQueue) -> Store:
    """This relay's part, or one beside it while another relay still delivers what was left in it.

    When it is this machine's own dead process that has the lease, it is waited for: its submission keys and
    its mail are in that part.
    """
    name = own_name(settings)
    over, tries = Event(), int((settings.lease + SLACK_S) / WAIT_S)
    for _ in range(tries):
        try:
            return place.open(name)
        except QueueLocked as exc:
            if not _is_dead(exc.holder):
                break
            over.wait(WAIT_S)
    for number in range(1, SPARES_MAX):
        chosen = name if number == 1 else f"{name}-{number}"
        try:
            store = place.open(chosen)
            if number > 1:
                log.warning(
                    "queue.shared.name: part '%s' is in use, '%s' is begun beside it", name, chosen
                )
            return store
        except QueueLocked:
            continue
    raise QueueLocked(f"queue.shared.name: {name} and {SPARES_MAX} names beside it are in use")


def _is_dead(holder: str) -> bool:
    """Whether ``holder`` (host:pid) is a process of this machine that has ended."""
    host, _, pid = holder.rpartition(":")
    return host == socket.getfqdn() and pid.isdigit() and not Path(f"/proc/{pid}").exists()


def new_token() -> str:
    """Who holds a lease: for people, and never twice."""
    return f"{socket.getfqdn()}:{os.getpid()}:{secrets.token_hex(8)}"
