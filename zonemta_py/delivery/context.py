"""What the workers of all zones share."""

from dataclasses import dataclass, field
from random import Random

from zonemta_py.config.hooks import NO_HOOKS, Hooks
from zonemta_py.config.schema import Config
from zonemta_py.delivery.egress import Egress
from zonemta_py.delivery.pending_reports import PendingReports
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router


@dataclass(slots=True)
class DeliveryContext:
    """What settling a lease needs besides the settings of its zone. A reload replaces the fields in place."""

    queue: Queue
    config: Config
    hostname: str
    router: Router
    hooks: Hooks = NO_HOOKS
    pending: PendingReports = field(default_factory=PendingReports)
    _egress: Egress | None = None
    rng: Random = field(default_factory=Random)

    @property
    def egress(self) -> Egress:
        """The permits that all zones share; made when the first zone asks, in a running loop."""
        if self._egress is None:
            self._egress = Egress(self.queue, self.config)
        return self._egress
