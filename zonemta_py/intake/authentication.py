"""Password checks: bounded in threads, in turns by network, slow for those who guess, quick for those who were right.

A hash takes tens of milliseconds on purpose. Checks have threads of their own, so that guessing delays
nothing else; a right password is remembered for some minutes as an HMAC with a key of this process, and is
never refused then. The others wait: networks from which someone logged in lately come first, and within
both kinds networks have turns. A network with too many wrong passwords is refused, but for users who have
logged in from it lately, who may be wrong as often, each.
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
from zonemta_py.queue.logins import FAILURES_MAX, RecentLogins, WrongPasswords, of_login

THREADS = 2
WAITING_MAX = 1000  # checks of strangers; each is that of an open session
REMEMBERED_S = 600.0  # since the last use
REMEMBERED_MAX = 10_000
FAILURE_DELAY_S = 1.0

BUSY = "454 4.7.0 Too many password checks at the moment, try again later"
BLOCKED = "421 4.7.0 Too many wrong passwords from your address, try again later"
WRONG = "535 5.7.8 Authentication credentials invalid"

log = logging.getLogger(__name__)


class RepeatedRefusal(str):
    """The same words as the first time, so that a client learns nothing of others who were wrong; it is only counted."""

    __slots__ = ()


STILL_WRONG = RepeatedRefusal(WRONG)  # as often as it is sent

Done = Callable[[str], None]


class PasswordChecks:
    """The password checks of one process. ``wrong`` and ``recent``: those of other processes, too."""

    def __init__(
        self,
        failure_delay_s: float = FAILURE_DELAY_S,
        wrong: WrongPasswords | None = None,
        recent: RecentLogins | None = None,
    ) -> None:
        self._failure_delay_s = failure_delay_s
        self._wrong = wrong or WrongPasswords()
        self._recent = recent or RecentLogins()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="password")
        self._checks: dict[bytes, _Check] = {}  # under way and waiting
        self._familiar, self._strangers = _Turns(), _Turns()
        # Checks under way by what they count for: each counts as a wrong one until it has ended.
        self._guesses = Counter[str]()
        self._key = secrets.token_bytes(32)
        self._remembered = _Remembered()
        self._known_wrong = _Remembered()

    def check(
        self, users: Users, name: str, password: str, client_ip: str, done: Done
    ) -> Callable[[], None]:
        """Call ``done`` later, with an empty text or the reply of a refusal; the result withdraws the question.

        Many sessions may ask for the same name and password at once, as bulk senders do: that is one check.
        """
        loop, digest = asyncio.get_running_loop(), self._digest(users, name, password)
        network = network_of(client_ip)
        if self._remembered.uses(digest):
            self._recent.add(network, name)
            return loop.call_soon(done, "").cancel
        if self._counted_as(network, name) is None:
            return loop.call_soon(done, BLOCKED).cancel
        if self._known_wrong.has(digest):
            return loop.call_later(self._failure_delay_s, done, STILL_WRONG).cancel
        check = self._checks.get(digest)
        if check is None:
            is_familiar = self._recent.is_familiar(network)
            if len(self._checks) >= WAITING_MAX and not is_familiar:
                return loop.call_soon(done, BUSY).cancel
            check = self._checks[digest] = _Check(users, name, password, digest)
            self._wait(check, network)
        question = network, client_ip, done
        check.asked.append(question)
        self._start_next()
        return lambda: self._withdraw(check, question)

    def _withdraw(self, check: "_Check", question: tuple[str, str, Done]) -> None:
        """The session has ended; a check that has not begun, and for which no other waits, is not made."""
        if question in check.asked:
            check.asked.remove(question)
            if not check.asked and not check.counted_as:
                check.turns.remove(check)
                del self._checks[check.digest]

    def _wait(self, check: "_Check", network: str) -> None:
        check.network = network
        check.turns = self._familiar if self._recent.is_familiar(network) else self._strangers
        check.turns.add(check)

    def _counted_as(self, network: str, name: str) -> str | None:
        """What a wrong password for ``name`` counts for; None if it is too many."""
        if self._wrong.count(network) < FAILURES_MAX:
            return network
        login = of_login(network, name)
        if self._recent.has(network, name) and self._wrong.count(login) < FAILURES_MAX:
            return login
        return None

    def _start_next(self) -> None:
        """Begin checks whose turn it is, as long as there are threads."""
        while sum(self._guesses.values()) < THREADS:
            check = self._familiar.next(self._may_begin) or self._strangers.next(self._may_begin)
            if check is None:
                return
            counted_as = self._counted_as(check.network, check.name)
            if counted_as is None:
                self._refuse(check)
            else:
                self._begin(counted_as, check)

    def _may_begin(self, check: "_Check") -> bool:
        """Whether what is under way leaves room for one more wrong password; a refusal always may."""
        counted_as = self._counted_as(check.network, check.name)
        return counted_as is None or (
            self._wrong.count(counted_as) + self._guesses[counted_as] < FAILURES_MAX
        )

    def _refuse(self, check: "_Check") -> None:
        """The network had too many wrong ones meanwhile; those of other networks wait on."""
        for network, _, done in check.asked:
            if network == check.network:
                asyncio.get_running_loop().call_soon(done, BLOCKED)
        check.asked = [each for each in check.asked if each[0] != check.network]
        if check.asked:
            self._wait(check, check.asked[0][0])
        else:
            del self._checks[check.digest]

    def _begin(self, counted_as: str, check: "_Check") -> None:
        loop = asyncio.get_running_loop()
        check.counted_as = counted_as
        self._guesses[counted_as] += 1
        verified = loop.run_in_executor(self._threads, check.users.verify, check.name, check.password)
        verified.add_done_callback(lambda future: self._verified(future, check))

    def _verified(self, verified: asyncio.Future[bool], check: "_Check") -> None:
        del self._checks[check.digest]
        self._guesses[check.counted_as] -= 1
        if not self._guesses[check.counted_as]:
            del self._guesses[check.counted_as]
        if verified.cancelled():
            return  # this process ends
        if verified.exception() is not None:
            for _, _, done in check.asked:
                done(BUSY)
        elif verified.result():
            self._remembered.add(check.digest)
            for network, _, done in check.asked:
                self._recent.add(network, check.name)
                done("")
        else:
            self._known_wrong.add(check.digest)
            self._wrong.add(check.counted_as)
            for _, client_ip, done in check.asked:
                log.warning("authentication failed: user=%r client=%s", check.name, client_ip)
                verified.get_loop().call_later(self._failure_delay_s, done, WRONG)
        self._start_next()

    def _digest(self, users: Users, name: str, password: str) -> bytes:
        """Depends on the stored hash as well: a changed password is not remembered."""
        parts = (users.hash_of(name), name, password)
        text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, text, "sha256")

    def close(self) -> None:
        """Start no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Check:
    """One name and password, and who asked: network, address, and what is called with the answer."""

    def __init__(self, users: Users, name: str, password: str, digest: bytes) -> None:
        self.users, self.name, self.password, self.digest = users, name, password, digest
        self.asked: list[tuple[str, str, Done]] = []
        self.network, self.turns = "", _Turns()  # where it waits
        self.counted_as = ""  # once it has begun


class _Turns:
    """Checks that wait, by the network that asked first; networks have turns."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[_Check]] = OrderedDict()

    def add(self, check: "_Check") -> None:
        """Wait behind those of the same network."""
        self._waiting.setdefault(check.network, deque()).append(check)

    def remove(self, check: "_Check") -> None:
        """It does not wait any more."""
        checks = self._waiting[check.network]
        checks.remove(check)
        if not checks:
            del self._waiting[check.network]

    def next(self, may_begin: Callable[["_Check"], bool]) -> "_Check | None":
        """Remove the first that may begin, of the network whose turn it is."""
        for network, checks in self._waiting.items():
            if may_begin(checks[0]):
                check = checks[0]
                self._waiting.move_to_end(network)
                self.remove(check)
                return check
        return None


class _Remembered:
    """Digests of passwords that were checked, for REMEMBERED_S after the check, or after their last use."""

    def __init__(self) -> None:
        self._until_s: OrderedDict[bytes, float] = (
            OrderedDict()
        )  # monotonic; the least recently used first

    def has(self, digest: bytes) -> bool:
        """Whether a digest is remembered."""
        return self._until_s.get(digest, 0.0) > clock.monotonic_s()

    def uses(self, digest: bytes) -> bool:
        """The same; then it is for another time."""
        if not self.has(digest):
            return False
        self.add(digest)
        return True

    def add(self, digest: bytes) -> None:
        """Remember a digest from now on."""
        self._until_s[digest] = clock.monotonic_s() + REMEMBERED_S
        self._until_s.move_to_end(digest)
        if len(self._until_s) > REMEMBERED_MAX:
            self._until_s.popitem(last=False)
