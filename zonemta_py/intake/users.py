"""The users file: who may submit mail from any address.

One user per line, ``name:hash``; ``#`` begins a comment, and ``!`` the hash of a disabled user. A hash is ``$argon2…`` (made by ``zonemta
password``) or ``$scrypt$ln=14,r=8,p=1$SALT$KEY`` with unpadded base64. Verifying takes tens of
milliseconds on purpose: call it in a thread.
"""

import base64
import hashlib
import hmac
import re
import secrets
from functools import cache
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from zonemta_py.core.errors import ConfigError

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
        """Whether the password is right. Slow; may be called in any thread.

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
    """Whether ``name`` can be in a users file."""
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
