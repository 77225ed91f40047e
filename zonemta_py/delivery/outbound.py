"""What all zones share when they decide: the queue, names, rules. A reload replaces it."""

from dataclasses import dataclass, field
from random import Random

from zonemta_py.config.schema import Config
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import Router


@dataclass(slots=True)
class Outbound:
    """Everything a settle or a report asks that is not its zone's own."""

    queue: Queue
    config: Config
    hostname: str
    router: Router
    rng: Random = field(default_factory=Random)
