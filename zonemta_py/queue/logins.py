"""Right and wrong passwords of the last minutes, known to all processes that accept mail. All in memory."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

from zonemta_py.core import clock

FAILURES_MAX = 10  # of one network in FAILURE_WINDOW_S
FAILURE_WINDOW_S = 600.0
NETWORKS_MAX = 10_000
RECENT_S = 86_400.0
RECENT_MAX = 10_000
REPORT_EVERY_S = 600.0

log = logging.getLogger(__name__)


class WrongPasswords:
    """The wrong passwords of the last minutes, by the network that they came from.

    What has logged in from a network lately is counted by itself there (``of_login``). A receiver process gives
    ``report``, which is called with the network of each that it finds; the queue's process has all, and writes the
    line in the log when a network has too many.
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
                "too many wrong passwords from %s: others are refused for %d minutes",
                network,
                FAILURE_WINDOW_S / 60,
            )
        self._times.move_to_end(network)
        if len(self._times) > NETWORKS_MAX:
            self._times.popitem(last=False)


class RecentLogins:
    """Who has logged in from which network in the last day: users there are no strangers.

    A process gives ``report``, which is called with network and user of a login that the others may not know.
    """

    def __init__(self, report: Callable[[str, str], None] | None = None) -> None:
        self._report = report
        self._logins: OrderedDict[tuple[str, str], float] = OrderedDict()  # when last; the latest last
        self._networks: dict[str, int] = {}  # the number of their users above

    def add(self, network: str, user: str) -> None:
        """``user`` has logged in here."""
        before_s = self._logins.get((network, user))
        if before_s is not None and clock.monotonic_s() - before_s < REPORT_EVERY_S:
            return
        self.learn(network, user)
        if self._report is not None:
            self._report(network, user)

    def learn(self, network: str, user: str) -> None:
        """``user`` has logged in, here or at another process."""
        if (network, user) not in self._logins:
            self._networks[network] = self._networks.get(network, 0) + 1
        self._logins[network, user] = clock.monotonic_s()
        self._logins.move_to_end((network, user))
        while len(self._logins) > RECENT_MAX:
            self._forget(next(iter(self._logins)))

    def has(self, network: str, user: str) -> bool:
        """Whether ``user`` has logged in from ``network`` lately."""
        self._expire()
        return (network, user) in self._logins

    def is_familiar(self, network: str) -> bool:
        """Whether someone has logged in from ``network`` lately."""
        self._expire()
        return network in self._networks

    def all(self) -> list[tuple[str, str]]:
        """Networks and users, for a process that begins."""
        self._expire()
        return list(self._logins)

    def learn_all(self, logins: Iterable[tuple[str, str]]) -> None:
        """The same of another process."""
        for network, user in logins:
            self.learn(network, user)

    def _expire(self) -> None:
        limit_s = clock.monotonic_s() - RECENT_S
        while self._logins and next(iter(self._logins.values())) <= limit_s:
            self._forget(next(iter(self._logins)))

    def _forget(self, login: tuple[str, str]) -> None:
        del self._logins[login]
        network = login[0]
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]


def of_login(network: str, user: str) -> str:
    """Under which name WrongPasswords counts those of a user who has logged in from ``network`` lately."""
    return f"{network} {user}"
