"""How many processes ``auto`` means. Pure."""

import os

from zonemta_py.config.schema import Config
from zonemta_py.config.units import AUTO

AT_MOST = 4  # of a kind: the queue's process is one, and feeds no more


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def arrangement(config: Config, cores_here: int) -> tuple[int, int]:
    """How many receivers and senders there are to be.

    On two cores a receiver runs beside the queue's process and its senders. A quarter of more cores
    is for each kind, the rest for the queue, LevelDB's thread and the system.
    """
    receivers, senders = int(config.processes.receivers), int(config.processes.senders)
    quarter = min(cores_here // 4, AT_MOST)
    if receivers == AUTO:
        fewest = min(listener.max_sessions for listener in config.listeners)
        receivers = min(fewest, max(quarter, 1)) if cores_here > 1 else 0
    if senders == AUTO:
        senders = quarter
    return receivers, senders
