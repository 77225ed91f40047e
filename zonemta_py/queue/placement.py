"""Where the recipients of one commit will go: into a window, or under a ``spill/`` key."""

from dataclasses import dataclass, field
from typing import NamedTuple

from zonemta_py.queue import keys
from zonemta_py.queue.lanes import Recipient


class Spill(NamedTuple):
    """What a ``spill/`` key names, and whose message it is."""

    zone: str
    destination: str
    message: str
    submitter: str

    @property
    def key(self) -> bytes:
        """The key."""
        return keys.spill_key(self.zone, self.destination, self.message)


@dataclass(slots=True)
class Placement:
    """Where the recipients of one commit will go: groups in the window, and what spills."""

    groups: list[tuple[str, str, list[Recipient]]] = field(default_factory=list)
    spills: list[Spill] = field(default_factory=list)
