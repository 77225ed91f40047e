"""Tokens of the HTTP interface: who may do what. A file has digests, never tokens.

A line is ``NAME ROLE sha256:HEX [TENANT]``; empty lines and comments (#) are skipped. A token has 256 random bits, so
its digest needs no salt and no slow hash.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from zonemta_py.config.hooks import read_token
from zonemta_py.config.schema import Config
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.files import is_own_file, replace_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
MODE = 0o600  # of a new file
MADE_NAME = "admin.token"  # in the queue directory


class Role(StrEnum):
    """The purpose of a token: to look, to send mail, to change the queue, or everything."""

    READ = "read"
    SEND = "send"
    OPERATE = "operate"
    ADMIN = "admin"


_INCLUDES = {
    Role.READ: {Role.READ},
    Role.SEND: {Role.SEND},
    Role.OPERATE: {Role.READ, Role.OPERATE},
    Role.ADMIN: set(Role),
}


class Token(Struct, frozen=True):
    """Who has it, and for what; ``tenant``: for the mail of that tenant only, empty for all."""

    name: str
    role: Role
    digest: str
    tenant: str = ""

    def allows(self, needed: Role) -> bool:
        """True if it is for ``needed``."""
        return needed in _INCLUDES[self.role]


class Tokens:
    """The tokens of a relay."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._by_digest = {token.digest: token for token in tokens}

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def tenants(self) -> set[str]:
        """The tenants that tokens belong to."""
        return {token.tenant for token in self._by_digest.values()} - {""}

    def __contains__(self, token: Token) -> bool:
        return self._by_digest.get(token.digest) == token

    def find(self, text: str) -> Token | None:
        """The token with this text."""
        return self._by_digest.get(digest_of(text))


def digest_of(text: str) -> str:
    """A token as the file has it."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        token = _parse(words)
        if token is None:
            roles = ", ".join(Role)
            raise ConfigError(
                f"{path}:{number}: expected NAME ROLE sha256:HEX [TENANT], with a role of {roles}"
            )
        if token.name in tokens:
            raise ConfigError(f"{path}:{number}: the name '{token.name}' appears twice")
        tokens[token.name] = token
    return list(tokens.values())


def _parse(words: list[str]) -> Token | None:
    if not 3 <= len(words) <= 4 or words[1] not in set(Role):
        return None
    if not NAME.match(words[0]) or not DIGEST.match(words[2]):
        return None
    return Token(words[0], Role(words[1]), words[2], words[3] if len(words) == 4 else "")


def load_tokens(tokens_file: Path | None, token_file: Path | None, made: Path | None = None) -> Tokens:
    """All tokens: of ``tokens_file``, the one of ``token_file``, which is for mail, and the ``made`` one.

    Raises ConfigError.
    """
    tokens = read_tokens(tokens_file) if tokens_file is not None else []
    if token_file is not None:
        tokens.append(Token("token_file", Role.SEND, digest_of(read_token(token_file))))
    if made is not None and is_own_file(made):
        tokens.append(Token("admin", Role.ADMIN, digest_of(read_token(made))))
    return Tokens(tokens)


def check_tokens(config: Config) -> Tokens:
    """The tokens of ``config``. Raises ConfigError."""
    tokens = load_tokens(config.admin.tokens_file, config.admin.token_file)
    for tenant in sorted(tokens.tenants() - set(config.tenants)):
        raise ConfigError(f"{config.admin.tokens_file}: there is no tenant '{tenant}'")
    return tokens


def make_token(path: Path) -> None:
    """Write a new token into ``path``, for its owner only, unless there is one that others cannot have put there.

    Raises LocalError.
    """
    try:
        if not is_own_file(path):
            replace_text(path, secrets.token_urlsafe(32) + "\n", MODE, follow=False)
    except OSError as exc:
        raise LocalError(f"{path}: the token cannot be written: {exc.strerror or exc}") from exc


def add_token(path: Path, name: str, role: Role, tenant: str = "") -> str:
    """Add a token to a file, which is created if need be; returns its text. Raises LocalError, ConfigError."""
    if not NAME.match(name):
        raise LocalError(f"'{name}': a name has letters, digits, dots and dashes")
    present = read_tokens(path) if path.exists() else []
    if any(token.name == name for token in present):
        raise LocalError(f"{path}: there is a token '{name}'")
    text = secrets.token_urlsafe(32)
    line = " ".join(filter(None, (name, role.value, digest_of(text), tenant)))
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if before and not before.endswith("\n"):
            before += "\n"
        replace_text(path, f"{before}{line}\n", MODE)
    except OSError as exc:
        raise LocalError(f"{path}: the tokens file cannot be written: {exc.strerror or exc}") from exc
    return text


def remove_token(path: Path, name: str) -> None:
    """Remove a token from a file. Raises LocalError, ConfigError."""
    if name not in {token.name for token in read_tokens(path)}:
        raise LocalError(f"{path}: there is no token '{name}'")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.split("#", 1)[0].split()[:1] != [name]]
    try:
        replace_text(path, "".join(kept), MODE)
    except OSError as exc:
        raise LocalError(f"{path}: the tokens file cannot be written: {exc.strerror or exc}") from exc
