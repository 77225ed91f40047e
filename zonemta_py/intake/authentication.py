"""Password checks: bounded in threads and time, slow for those who guess, quick for those who were right.

A hash takes tens of milliseconds on purpose. Checks have threads of their own, so that guessing delays
nothing else; a right password is remembered for some minutes as an HMAC with a key of this process.
"""

import asyncio
import hmac
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from zonemta_py.core import clock
from zonemta_py.core.networks import network_of
from zonemta_py.intake.users import Users
from zonemta_py.queue.wrong_passwords import FAILURES_MAX, WrongPasswords

THREADS = 2
WAITING_MAX = 50  # different checks under way and waiting; a second of CPU or two
REMEMBERED_S = 600.0
REMEMBERED_MAX = 10_000
FAILURE_DELAY_S = 1.0

BUSY = "454 4.7.0 Too many password checks at the moment, try again later"
BLOCKED = "421 4.7.0 Too many wrong passwords from your address, try again later"
WRONG = "535 5.7.8 Authentication credentials invalid"

log = logging.getLogger(__name__)


class PasswordChecks:
    """The password checks of one process. ``wrong`` counts the wrong ones, of other processes too."""

    def __init__(
        self, failure_delay_s: float = FAILURE_DELAY_S, wrong: WrongPasswords | None = None
    ) -> None:
        self._failure_delay_s = failure_delay_s
        self._wrong = wrong or WrongPasswords()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        # For each check under way the clients' addresses, and what is called with the answer.
        self._underway: dict[bytes, list[tuple[str, Callable[[str], None]]]] = {}
        # Checks under way by network: each counts as a wrong one until it has ended.
        self._guesses = Counter[str]()
        self._key = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, float] = OrderedDict()  # to the end of its time, monotonic

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
            or self._wrong.count(network) + self._guesses[network] >= FAILURES_MAX
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
                self._wrong.add(network_of(client_ip))
                log.warning("authentication failed: user=%r client=%s", name, client_ip)
                verified.get_loop().call_later(self._failure_delay_s, done, WRONG)

    def _digest(self, users: Users, name: str, password: str) -> bytes:
        """Depends on the stored hash as well: a changed password is not remembered."""
        parts = (users.hash_of(name), name, password)
        text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, text, "sha256")

    def is_blocked(self, client_ip: str) -> bool:
        """Whether too many wrong passwords came from the network of ``client_ip`` lately."""
        return self._wrong.count(network_of(client_ip)) >= FAILURES_MAX

    def close(self) -> None:
        """Start no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)
