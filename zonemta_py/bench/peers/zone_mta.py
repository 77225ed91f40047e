"""ZoneMTA, which is not run: it keeps its mail in MongoDB and its counters in Redis.

A benchmark of it would be one of two databases, set up well or badly; and no configuration of it has
been tried here. The name is there so that asking for it gets an answer.
"""

from zonemta_py.bench.peers.peer import ForegroundPeer
from zonemta_py.core.errors import LocalError


class ZoneMtaRelay(ForegroundPeer):
    """Always left out."""

    name = "zone-mta"

    @classmethod
    def missing(cls) -> str:
        """Why it is left out."""
        return "it needs a MongoDB and a Redis of its own, which this benchmark does not set up"

    def start(self) -> None:
        """It cannot be. Raises LocalError."""
        raise LocalError(self.missing())
