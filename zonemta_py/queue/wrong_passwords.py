"""Wrong passwords by the network that they came from, counted over all processes that accept mail."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable

from zonemta_py.core import clock

FAILURES_MAX = 10  # of one network in FAILURE_WINDOW_S
FAILURE_WINDOW_S = 600.0
NETWORKS_MAX = 10_000

log = logging.getLogger(__name__)


class WrongPasswords:
    """The wrong passwords of the last minutes.

    A receiver process gives ``report``, which is called with the network of each that it finds; the queue's process
    has all, and writes the line in the log when a network has too many.
    """

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self._report = report
        self._times: OrderedDict[str, deque[float]] = OrderedDict()  # by network, monotonic

    def count(self, network: str) -> int:
        """How many there were lately, at most FAILURES_MAX."""
        times = self._times.get(network)
        if times is None:
            return 0
        while times and times[0] <= clock.monotonic_s() - FAILURE_WINDOW_S:
            times.popleft()
        return len(times)

    def add(self, network: str) -> None:
        """One was found here."""
        self.learn(network)
        if self._report is not None:
            self._report(network)

    def learn(self, network: str) -> None:
        """One was found, here or by another process."""
        was_open = self.count(network) < FAILURES_MAX
        times = self._times.setdefault(network, deque(maxlen=FAILURES_MAX))
        times.append(clock.monotonic_s())
        if self._report is None and was_open and len(times) == FAILURES_MAX:
            log.warning(
                "too many wrong passwords: the network %s is refused for %d minutes",
                network,
                FAILURE_WINDOW_S / 60,
            )
        self._times.move_to_end(network)
        if len(self._times) > NETWORKS_MAX:
            self._times.popitem(last=False)
