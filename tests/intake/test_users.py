"""The users file, its hashes, and what importing costs."""

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from zonemta_py.core.errors import ConfigError
from zonemta_py.intake.users import Users, hash_password, load_users

SALT = b"0123456789abcdef"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def test_hashes() -> None:
    """argon2 and scrypt; an unknown user and a damaged hash are refused."""
    key = hashlib.scrypt(b"pass", salt=SALT, n=1 << 4, r=8, p=1, dklen=32)
    users = Users(
        {
            "a": hash_password("pass"),
            "s": f"$scrypt$ln=4,r=8,p=1${b64(SALT)}${b64(key)}",
            "damaged": "$argon2id$x",
        }
    )
    assert users.verify("a", "pass")
    assert not users.verify("a", "Pass")
    assert users.verify("s", "pass")
    assert not users.verify("s", "wrong")
    assert not users.verify("unknown", "pass")
    assert not users.verify("damaged", "pass")


def test_the_decoy_is_not_a_password() -> None:
    assert not Users({}).verify("", "a password that no user has")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"# may submit\n\n  news:{hash_password('x')}\n")
    users = load_users(path)
    assert users.verify("news", "x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:plain", "users:1: expected name:hash"),
        ("# x\n\na", "users:3: expected"),
        (":$argon2id$x", "users:1: expected"),
        ("a:$argon2id$x\n" * 2, "users:2: duplicate user 'a'"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_users(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the users file cannot be read"):
        load_users(tmp_path / "users")


IMPORTS = """
import argon2

class Refusing(argon2.PasswordHasher):
    def hash(self, *arguments, **options):
        raise AssertionError("hashed a password")

argon2.PasswordHasher = Refusing
import zonemta_py.intake.http, zonemta_py.intake.inject, zonemta_py.intake.listener
from zonemta_py.intake import users
assert users._decoy_hash.cache_info().currsize == 0
try:
    users.Users({}).verify("a", "b")
except AssertionError:
    print("hashed at the first AUTH")
"""


def test_importing_intake_hashes_nothing() -> None:
    """A hash takes tens of milliseconds: it is made at the first AUTH."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "hashed at the first AUTH", done.stderr
