"""``zonemta user``: what it does to the users file, and who may log in then."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zonemta_py.cli.main import main
from zonemta_py.intake.users import load_users

CONFIG = """
listeners: [{address: '127.0.0.1:0', auth: {users_file: users, require_tls: false}}]
tenants: {acme: {users: [ann]}}
"""


def zonemta(directory: Path, *arguments: str) -> Result:
    (directory / "z.yaml").write_text(CONFIG)
    return CliRunner().invoke(main, [*arguments, "-c", str(directory / "z.yaml")])


def test_a_life_of_a_user(tmp_path: Path) -> None:
    """Comments, order and permissions of the file stay as they are."""
    path = tmp_path / "users"
    added = zonemta(tmp_path, "user", "add", "ann", "--password", "one")
    assert added.exit_code == 0, added.output
    assert added.output == f"added ann in {path}; `zonemta reload` lets a running relay know\n"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("# people\n\n" + path.read_text() + "  # programs\n")
    path.chmod(0o640)
    assert zonemta(tmp_path, "user", "add", "app", "--password", "two").exit_code == 0
    assert zonemta(tmp_path, "user", "passwd", "ann", "--password", "three").exit_code == 0
    users = load_users(path)
    assert users.verify("ann", "three")
    assert not users.verify("ann", "one")
    assert users.verify("app", "two")
    assert zonemta(tmp_path, "user", "disable", "ann").exit_code == 0
    assert zonemta(tmp_path, "user", "disable", "ann").exit_code == 0, "twice is once"
    assert not load_users(path).verify("ann", "three")
    listed = [
        json.loads(line) for line in zonemta(tmp_path, "user", "list", "--json").output.splitlines()
    ]
    assert [(row["user"], row["hash"], row["enabled"], row["tenant"]) for row in listed] == [
        ("ann", "argon2id", False, "acme"),
        ("app", "argon2id", True, ""),
    ]
    assert "acme" in zonemta(tmp_path, "user", "list").output
    assert zonemta(tmp_path, "user", "enable", "ann").exit_code == 0
    assert load_users(path).verify("ann", "three")
    lines = path.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["# people", "", "ann", "  # programs", "app"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["users", "z.yaml"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["add", "ann", "--password", "x"], 1, "there is a user 'ann'; `zonemta user passwd` changes"),
        (["add", "a:b", "--password", "x"], 2, "NAME must not be empty"),
        (["add", "b", "--password", ""], 2, "the password must not be empty"),
        (["passwd", "bob", "--password", "x"], 1, "users: there is no user 'bob'"),
        (["disable", "bob"], 1, "there is no user 'bob'"),
    ],
)
def test_errors(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    assert zonemta(tmp_path, "user", "add", "ann", "--password", "one").exit_code == 0
    before = (tmp_path / "users").read_bytes()
    result = zonemta(tmp_path, "user", *arguments)
    assert (result.exit_code, (tmp_path / "users").read_bytes()) == (code, before)
    assert text in result.output


def test_a_user_that_no_file_has_is_not_suspended(tmp_path: Path) -> None:
    assert zonemta(tmp_path, "user", "add", "ann", "--password", "one").exit_code == 0
    result = zonemta(tmp_path, "suspend", "--user", "bob")
    assert (result.exit_code, "no user 'bob'; there is ann" in result.stderr) == (2, True)


def test_which_file(tmp_path: Path) -> None:
    """Without a users file in the configuration, or with a damaged one, the error says so."""
    (tmp_path / "none.yaml").write_text("{}")
    result = CliRunner().invoke(main, ["user", "list", "-c", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "no listeners.auth.users_file; name one with --file" in result.output
    other = tmp_path / "other"
    arguments = ["--file", str(other), "-c", str(tmp_path / "none.yaml")]
    made = CliRunner().invoke(main, ["user", "add", "bob", "--password", "x", *arguments])
    assert made.exit_code == 0
    assert load_users(other).verify("bob", "x")
    other.write_text("bob\n")
    damaged = CliRunner().invoke(main, ["user", "disable", "bob", *arguments])
    assert damaged.exit_code == 2
    assert "other:1: expected name:hash" in damaged.output
