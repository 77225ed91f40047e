"""The tokens file: what a line may be, and what a role includes."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.admin.tokens import (
    Role,
    Token,
    Tokens,
    add_token,
    digest_of,
    load_tokens,
    make_token,
    read_tokens,
    remove_token,
)
from zonemta_py.core.errors import ConfigError, LocalError


def test_a_token_is_added_and_found(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    text = add_token(path, "dashboard", Role.READ)
    other = add_token(path, "acme-api", Role.SEND, "acme")
    assert path.stat().st_mode & 0o777 == 0o600
    assert text not in path.read_text()
    tokens = load_tokens(path, None)
    assert tokens.find(text) == Token("dashboard", Role.READ, digest_of(text))
    found = tokens.find(other)
    assert found is not None
    assert (found.tenant, found.role) == ("acme", Role.SEND)
    assert tokens.find(other + "x") is None
    assert tokens.find("") is None
    assert tokens.find("\ud800") is None  # of a form in UTF-7
    with pytest.raises(LocalError, match="there is a token 'dashboard'"):
        add_token(path, "dashboard", Role.READ)
    with pytest.raises(LocalError, match="a name has letters"):
        add_token(path, "two words", Role.READ)


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Role.READ, {Role.READ}),
        (Role.SEND, {Role.SEND}),
        (Role.OPERATE, {Role.READ, Role.OPERATE}),
        (Role.ADMIN, set(Role)),
    ],
)
def test_what_a_role_includes(role: Role, allowed: set[Role]) -> None:
    assert {each for each in Role if Token("x", role, "").allows(each)} == allowed


@pytest.mark.parametrize(
    "line",
    ["x", "x read", "x write sha256:" + "0" * 64, "x read sha256:00", "-x read sha256:" + "0" * 64,
     "x read sha256:" + "0" * 64 + " acme more", "x read md5:" + "0" * 64],
)  # fmt: skip
def test_a_line_that_is_none(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# a comment\n\n{line}\n")
    with pytest.raises(ConfigError, match=r"tokens:3: expected NAME ROLE sha256:HEX \[TENANT\]"):
        read_tokens(path)


def test_names_are_unique_and_files_readable(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"a read {digest_of('1')}\na read {digest_of('2')}  # again\n")
    with pytest.raises(ConfigError, match=r"tokens:2: the name 'a' appears twice"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_tokens(tmp_path / "none")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        assert all(token.role in set(Role) for token in read_tokens(path))
    except ConfigError as exc:
        assert str(path) in str(exc)


def test_the_token_that_is_made(tmp_path: Path) -> None:
    """Once, for the owner only; with it everything is allowed."""
    path = tmp_path / "admin.token"
    make_token(path)
    text = path.read_text().strip()
    make_token(path)
    assert path.read_text().strip() == text
    assert path.stat().st_mode & 0o777 == 0o600
    found = load_tokens(None, None, path).find(text)
    assert found is not None
    assert found.role is Role.ADMIN
    assert not Tokens([])


def test_a_token_that_was_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves nothing; an empty file of an earlier version is no token."""
    path = tmp_path / "admin.token"
    path.touch()
    make_token(path)
    assert len(path.read_text()) > 30
    other = tmp_path / "other"
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(LocalError, match="the token cannot be written: No space left"):
        make_token(other)
    assert not other.exists()


def test_a_file_without_a_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"a read {digest_of('1')}")
    add_token(path, "b", Role.READ)
    assert [token.name for token in read_tokens(path)] == ["a", "b"]
    remove_token(path, "a")
    assert [token.name for token in read_tokens(path)] == ["b"]
    with pytest.raises(LocalError, match="there is no token 'a'"):
        remove_token(path, "a")
