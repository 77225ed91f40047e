"""Users and their passwords: the users file, checks of passwords, and changes of the file.

The file has one user per line, ``name:hash``; ``#`` begins a comment, and ``!`` the hash of a disabled user. A hash is
``$argon2…`` (made by ``zonemta password``) or ``$scrypt$ln=14,r=8,p=1$SALT$KEY`` with unpadded base64. A verification takes tens
of milliseconds on purpose, so it runs in a thread.

States of a check (``PasswordChecks``); equal questions of several sessions share one check::

    asked ─▶ waiting ─▶ under way in a thread ─▶ answered
      ├────────────────────────────────────────▶ answered      right or wrong within REMEMBERED_S, or refused
      └─▶ withdrawn, while waiting

Invariants:

- At most THREADS hashes are computed at a time, in threads of their own: guesses delay neither mail nor the disk.
- Every check under way counts as a wrong password (``_guesses``): parallel guesses cannot exceed FAILURES_MAX.
- A right password that is remembered needs no thread and is never refused, so a flood of guesses does not stop senders.
- A digest depends on the stored hash and a key of this process: after a change of password no old answer is used.
- Each question is answered once, unless it is withdrawn or the process ends.
- The file is replaced at once: a reader sees the old users or the new ones.

Callers: ``Intake`` has one ``PasswordChecks`` for a process, which ``SecureConnection`` asks at AUTH; ``load_users`` is called at
a start and a reload; ``zonemta user`` changes the file.

Example: ``load_users(Path("users")).verify("anna", "secret")`` is True for a line that ``zonemta password`` made of *secret*.

Source: RFC 9106 (Argon2), RFC 7914 (scrypt), shadow(5) for the mark of a disabled user.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from zonemta_py.core import clock
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.files import replace_text
from zonemta_py.core.networks import network_of
from zonemta_py.queue.submitters.limits import FAILURES_MAX, RecentLogins, WrongPasswords, of_login

log = logging.getLogger(__name__)


_SCRYPT = re.compile(
    r"\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)\Z"
)
_SCRYPT_MEMORY = 128 << 20
DISABLED = "!"

_argon2 = PasswordHasher()


def hash_password(password: str) -> str:
    """An argon2id hash for the users file."""
    return _argon2.hash(password)


@cache
def _decoy_hash() -> str:
    """A hash that no password matches, for a file without users. Made once, since hashing is slow."""
    return hash_password("a password that no user has")


class Users:
    """The users of a file when it was read: name to hash."""

    def __init__(self, hashes: dict[str, str]) -> None:
        self._hashes = hashes
        self._key = secrets.token_bytes(16)

    def verify(self, name: str, password: str) -> bool:
        """True if the password is right. Slow; may be called in any thread.

        An unknown user takes as long as a known one: the hash of some user of the file is computed, always
        the same one for a name, because hashes may differ in kind and cost.
        """
        known = self._hashes.get(name)
        if known is not None:
            return _matches(known, password)
        others = list(self._hashes.values())
        number = int.from_bytes(hmac.digest(self._key, name.encode(), "sha256")[:8])
        _matches(others[number % len(others)] if others else _decoy_hash(), password)
        return False

    def hash_of(self, name: str) -> str:
        """The stored hash of a user; empty for an unknown one."""
        return self._hashes.get(name, "")


NOT_COMPUTED = ("Memory allocation error", "Threading failure")  # of the C library, as text only


def _matches(hashed: str, password: str) -> bool:
    match = _SCRYPT.match(hashed)
    if match is None:
        try:
            return _argon2.verify(hashed, password)
        except (VerificationError, InvalidHashError) as exc:
            if str(exc) in NOT_COMPUTED:
                raise  # it says nothing of the password
            return False
    salt, key = (base64.b64decode(part + "=" * (-len(part) % 4)) for part in match.groups()[3:])
    made = hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=1 << int(match[1]),
        r=int(match[2]),
        p=int(match[3]),
        maxmem=_SCRYPT_MEMORY,
        dklen=len(key),
    )
    return hmac.compare_digest(made, key)


def is_user_name(name: str) -> bool:
    """True if ``name`` can be in a users file."""
    return (
        bool(name) and name == name.strip() and name.isprintable() and ":" not in name and name[0] != "#"
    )


def load_users(path: Path) -> Users:
    """The users in ``path``. Raises ConfigError with file and line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as exc:
        raise ConfigError(
            f"{path}: the users file cannot be read: there is none; zonemta user add NAME -c FILE makes it"
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: the users file cannot be read: {exc}") from exc
    hashes = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, colon, stored = text.partition(":")
        hashed = stored.removeprefix(DISABLED)
        if not colon or not name or not (hashed.startswith("$argon2") or _SCRYPT.match(hashed)):
            raise ConfigError(f"{path}:{number}: expected name:hash with an argon2 or scrypt hash")
        if name in hashes:
            raise ConfigError(f"{path}:{number}: duplicate user '{name}'")
        hashes[name] = stored
    return Users({name: stored for name, stored in hashes.items() if stored[0] != DISABLED})


# ---- Password checks: bounded in threads, in turns by network.
#
# Networks from which a user logged in recently come first, and within both kinds networks have turns. A network with too many wrong
# passwords is refused, but for users who have logged in from it recently: each of them may be wrong as often.

THREADS = 2
WAITING_MAX = 1000  # checks of strangers; each is that of an open session
REMEMBERED_S = 600.0  # since the last use
REMEMBERED_MAX = 10_000
FAILURE_DELAY_S = 1.0

BUSY = "454 4.7.0 Too many password checks at the moment, try again later"
BLOCKED = "421 4.7.0 Too many wrong passwords from your address, try again later"
WRONG = "535 5.7.8 Authentication credentials invalid"


class RepeatedRefusal(str):
    """The reply ``WRONG`` again, which is only counted: the client learns nothing of others who were wrong."""

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
        """Withdraw a question: a check that has not begun, and for which no other waits, is not made."""
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
        """The key that counts a wrong password for ``name``; None if there were too many."""
        if self._wrong.count(network) < FAILURES_MAX:
            return network
        login = of_login(network, name)
        if self._recent.has(network, name) and self._wrong.count(login) < FAILURES_MAX:
            return login
        return None

    def _start_next(self) -> None:
        """Begin waiting checks as long as there are threads."""
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
        """True if the checks under way leave room for one more wrong password; a refusal may always begin."""
        counted_as = self._counted_as(check.network, check.name)
        return counted_as is None or (
            self._wrong.count(counted_as) + self._guesses[counted_as] < FAILURES_MAX
        )

    def _refuse(self, check: "_Check") -> None:
        """Refuse the questions of a network that had too many wrong passwords meanwhile; those of other networks wait."""
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
        """A digest of name, password and stored hash: a changed password is not remembered."""
        parts = (users.hash_of(name), name, password)
        text = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
        return hmac.digest(self._key, text, "sha256")

    def close(self) -> None:
        """Start no further check."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Check:
    """A name and a password, and the questions: network, address, and the function to call with the answer."""

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
        return self._until_s.get(digest, 0.0) > clock.monotonic_s()

    def uses(self, digest: bytes) -> bool:
        """True if a digest is remembered; its time starts again."""
        if not self.has(digest):
            return False
        self.add(digest)
        return True

    def add(self, digest: bytes) -> None:
        self._until_s[digest] = clock.monotonic_s() + REMEMBERED_S
        self._until_s.move_to_end(digest)
        if len(self._until_s) > REMEMBERED_MAX:
            self._until_s.popitem(last=False)


# ---- Changes of a users file. Its comments, its order and its permissions are kept.
#
# A disabled user has ``!`` in front of the hash, as in shadow(5). The file is replaced at once, so that a relay which
# reads it meanwhile has the old users or the new ones.

MODE = 0o600  # of a new file


class Entry(NamedTuple):
    """A user of a file. ``scheme`` of the hash: argon2id, scrypt, ..."""

    name: str
    scheme: str
    enabled: bool


def read_entries(path: Path) -> list[Entry]:
    """The users in ``path``, in its order. Raises ConfigError."""
    load_users(path)  # for its errors
    return [
        Entry(name, hashed.lstrip(DISABLED).split("$")[1], not hashed.startswith(DISABLED))
        for line in path.read_text(encoding="utf-8").splitlines()
        if (name := _name_in(line))
        for hashed in [line.strip().partition(":")[2]]
    ]


def add_user(path: Path, name: str, hashed: str) -> None:
    """Add a user at the end of the file, which is created if need be. Raises LocalError, ConfigError."""
    lines = _lines(path) if path.exists() else []
    if any(_name_in(line) == name for line in lines):
        raise LocalError(f"{path}: there is a user '{name}'; `zonemta user passwd` changes the password")
    _write(path, [*lines, f"{name}:{hashed}"])


def set_hash(path: Path, name: str, hashed: str) -> None:
    """Change the hash of a user, who is not disabled any more. Raises LocalError, ConfigError."""
    _change(path, name, lambda _: hashed)


def set_enabled(path: Path, name: str, *, enabled: bool) -> None:
    """Enable or disable the login of a user. Raises LocalError, ConfigError."""
    _change(path, name, lambda old: ("" if enabled else DISABLED) + old.lstrip(DISABLED))


def _change(path: Path, name: str, change: Callable[[str], str]) -> None:
    lines = _lines(path)
    at = next((at for at, line in enumerate(lines) if _name_in(line) == name), None)
    if at is None:
        raise LocalError(f"{path}: there is no user '{name}'")
    lines[at] = f"{name}:{change(lines[at].strip().partition(':')[2])}"
    _write(path, lines)


def _lines(path: Path) -> list[str]:
    load_users(path)
    return path.read_text(encoding="utf-8").splitlines()


def _name_in(line: str) -> str:
    """The user of a line; empty for a comment."""
    text = line.strip()
    return "" if text.startswith("#") else text.partition(":")[0]


def _write(path: Path, lines: list[str]) -> None:
    """Replace ``path``. Raises LocalError."""
    try:
        replace_text(path, "".join(f"{line}\n" for line in lines), MODE)
    except OSError as exc:
        raise LocalError(f"{path}: the users file cannot be written: {exc.strerror or exc}") from exc
