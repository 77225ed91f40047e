"""Password checks: bounded in threads and time, slow for those who guess, quick for those who were right.

A hash takes tens of milliseconds on purpose. Checks have threads of their own, so that guessing delays
nothing else; a right password is remembered for some minutes as an HMAC with a key of this process.
"""

import asyncio
import hmac
import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from zonemta_py.core import clock
from zonemta_py.core.networks import network_of
from zonemta_py.intake.users import Users

THREADS = 2
WAITING_MAX = 50  # different checks under way and waiting; a second of CPU or two
REMEMBERED_S = 600.0
REMEMBERED_MAX = 10_000
FAILURES_MAX = 10  # of one network in FAILURE_WINDOW_S
FAILURE_WINDOW_S = 600.0
NETWORKS_MAX = 10_000
FAILURE_DELAY_S = 1.0

BUSY = "454 4.7.0 Too many password checks at the moment, try again later"
BLOCKED = "421 4.7.0 Too many wrong passwords from your address, try again later"
WRONG = "535 5.7.8 Authentication credentials invalid"

log = logging.getLogger(__name__)


class PasswordChecks:
    """The password checks of one process."""

    def __init__(self, failure_delay_s: float = FAILURE_DELAY_S) -> None:
        self._failure_delay_s = failure_delay_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        # For each check under way the clients' addresses, and what is called with the answer.
        self._underway: dict[bytes, list[tuple[str, Callable[[str], None]]]] = {}
        # Checks under way by network: each counts as a wrong one until it has ended.
        self._guesses = Counter[str]()
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, float] = OrderedDict()  # to the end of its time, monotonic
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()  # by network

    def check(
        self, users: Users, name: str, password: str, client_ip: str, done: Callable[[str], None]
    ) -> None:
        """Call ``done`` later, with an empty text or the reply of a refusal.

        Many sessions may ask for the same name and password at once, as bulk senders do: that is one check.
        """
        loop, digest = asyncio.get_running_loop(), self._digest(users, name, password)
        network, known = network_of(client_ip), None
        if self.is_blocked(client_ip):
            known = BLOCKED
        elif self._remembered.get(digest, 0.0) > clock.monotonic_s():
            known = ""
        elif digest in self._underway:
            self._underway[digest].append((client_ip, done))
            return
        elif (
            len(self._underway) >= WAITING_MAX
            or self._failures_of(network) + self._guesses[network] >= FAILURES_MAX
        ):
            known = BUSY
        if known is not None:
            loop.call_soon(done, known)
            return
        self._underway[digest] = [(client_ip, done)]
        self._guesses[network] += 1
        verified = loop.run_in_executor(self._threads, users.verify, name, password)
        verified.add_done_callback(lambda future: self._verified(future, digest, name, network))

    def _verified(self, verified: asyncio.Future[bool], digest: bytes, name: str, network: str) -> None:
        asked = self._underway.pop(digest)
        self._guesses[network] -= 1
        if not self._guesses[network]:
            del self._guesses[network]
        if verified.cancelled() or verified.exception() is not None:
            for _, done in asked:
                done(BUSY)
        elif verified.result():
            self._remembered[digest] = clock.monotonic_s() + REMEMBERED_S
            self._remembered.move_to_end(digest)
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
            for _, done in asked:
                done("")
        else:
            for client_ip, done in asked:
                self._note_failure(client_ip)
                log.warning("authentication failed: user=%r client=%s", name, client_ip)
                verified.get_loop().call_later(self._failure_delay_s, done, WRONG)

    def _digest(self, users: Users, name: str, password: str) -> bytes:
        """Depends on the stored hash as well: a changed password is not remembered."""
        parts = (users.hash_of(name), name, password)
        text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, text, "sha256")

    def is_blocked(self, client_ip: str) -> bool:
        """Whether too many wrong passwords came from the network of ``client_ip`` lately."""
        return self._failures_of(network_of(client_ip)) >= FAILURES_MAX

    def _failures_of(self, network: str) -> int:
        times = self._failures.get(network)
        if times is None:
            return 0
        while times and times[0] <= clock.monotonic_s() - FAILURE_WINDOW_S:
            times.popleft()
        return len(times)

    def _note_failure(self, client_ip: str) -> None:
        times = self._failures.setdefault(network_of(client_ip), deque(maxlen=FAILURES_MAX))
        was_open = len(times) < FAILURES_MAX
        times.append(clock.monotonic_s())
        if was_open and len(times) == FAILURES_MAX:
            log.warning(
                "too many wrong passwords: the network %s is refused for %d minutes",
                network_of(client_ip),
                FAILURE_WINDOW_S / 60,
            )
        self._failures.move_to_end(network_of(client_ip))
        if len(self._failures) > NETWORKS_MAX:
            self._failures.popitem(last=False)

    def close(self) -> None:
        """Start no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)
