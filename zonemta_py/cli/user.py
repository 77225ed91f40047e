"""The group ``zonemta user``, ``zonemta dkim`` and ``zonemta password``: files of credentials."""

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from zonemta_py.admin.requests import SuspendedRequest
from zonemta_py.cli.ask import rows_of
from zonemta_py.cli.common import (
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.config.tenants import Tenants
from zonemta_py.core.errors import ConfigError
from zonemta_py.delivery.dkim import load_keys
from zonemta_py.intake.users import (
    add_user,
    hash_password,
    is_user_name,
    read_entries,
    set_enabled,
    set_hash,
)

file_option = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The users file, where the listeners of the configuration have several.",
)
password_option = click.password_option(help="The password; prompted for when not given.")


@click.group()
def user() -> None:
    """Show and change who may submit mail with a password: the users file of a listener.

    A running relay reads the file at the next reload. `zonemta suspend --user NAME` holds also what is queued.

    \b
    Example:
      zonemta user add newsletter -c config/zonemta.yaml
      zonemta reload -c config/zonemta.yaml
    """


def _users_file(config_path: Path, path: Path | None) -> Path:
    """The users file that is meant. Raises ConfigError when it is not clear which."""
    if path is not None:
        return path
    files = [each.auth.users_file for each in read_config(config_path).listeners]
    found = list(dict.fromkeys(str(each) for each in files if each is not None))
    if len(found) != 1:
        several = (
            f"several users files ({', '.join(found)})" if found else "no listeners.auth.users_file"
        )
        raise ConfigError(f"{config_path} has {several}; name one with --file")
    return Path(found[0])


def _suspended(config_path: Path) -> dict[str, dict[str, Any]]:
    """The suspended users; none without a queue."""
    if not read_config(config_path).queue.directory.is_dir():
        return {}
    rows = rows_of(config_path, SuspendedRequest())
    return {row["user"]: row for row in rows if "user" in row}


def _said(text: str, path: Path) -> None:
    echo(f"{text} in {path}; `zonemta reload` lets a running relay know")


@user.command()
@click.argument("name")
@config_option
@file_option
@password_option
@reports_errors
def add(name: str, config_path: Path, path: Path | None, password: str) -> None:
    """Add the user NAME to the users file, which is created if need be.

    With tenants, name the user in `tenants.NAME.users` as well. Exits 1 when there is such a user.

    \b
    Example:
      zonemta user add newsletter -c config/zonemta.yaml
    """
    if not is_user_name(name) or not password:
        raise click.UsageError(
            "NAME must not be empty, contain ':' or spaces at its ends, or begin with '#'; the password must not be empty"
        )
    where = _users_file(config_path, path)
    add_user(where, name, hash_password(password))
    _said(f"added {name}", where)


@user.command(short_help="Change the password of a user.")
@click.argument("name")
@config_option
@file_option
@password_option
@reports_errors
def passwd(name: str, config_path: Path, path: Path | None, password: str) -> None:
    """Change the password of the user NAME, who is enabled if that was not the case.

    \b
    Example:
      zonemta user passwd newsletter -c config/zonemta.yaml
    """
    if not password:
        raise click.UsageError("the password must not be empty")
    where = _users_file(config_path, path)
    set_hash(where, name, hash_password(password))
    _said(f"changed the password of {name}", where)


def _switch(name: str, config_path: Path, path: Path | None, *, enabled: bool) -> None:
    where = _users_file(config_path, path)
    set_enabled(where, name, enabled=enabled)
    _said(f"{'enabled' if enabled else 'disabled'} {name}", where)


@user.command()
@click.argument("name")
@config_option
@file_option
@reports_errors
def disable(name: str, config_path: Path, path: Path | None) -> None:
    """Let the user NAME not log in any more. Open sessions go on, and so does mail that was accepted.

    \b
    Example:
      zonemta user disable newsletter -c config/zonemta.yaml
    """
    _switch(name, config_path, path, enabled=False)


@user.command()
@click.argument("name")
@config_option
@file_option
@reports_errors
def enable(name: str, config_path: Path, path: Path | None) -> None:
    """Let the user NAME log in again, with the password from before.

    \b
    Example:
      zonemta user enable newsletter -c config/zonemta.yaml
    """
    _switch(name, config_path, path, enabled=True)


@user.command("list", short_help="List the users with their tenants.")
@config_option
@file_option
@json_option
@reports_errors
def list_(config_path: Path, path: Path | None, as_json: bool) -> None:
    """Print the users with the kind of their hash, whether they are enabled or suspended, and their tenant.

    \b
    Example:
      zonemta user list -c config/zonemta.yaml
    """
    where = _users_file(config_path, path)
    tenants = Tenants(read_config(config_path).tenants)
    table = Table("user", "hash", "enabled", "suspended", "tenant", box=None, pad_edge=False)
    suspended = _suspended(config_path)
    for entry in read_entries(where):
        tenant = tenants.of(entry.name, "")
        name = tenant.name if tenant is not None else ""
        if as_json:
            row = {"user": entry.name, "hash": entry.scheme, "enabled": entry.enabled, "tenant": name}
            print_json({**row, "suspended": suspended.get(entry.name), "file": str(where)})
        else:
            enabled, why = "yes" if entry.enabled else "no", suspended.get(entry.name, {})
            table.add_row(entry.name, entry.scheme, enabled, why.get("reason", ""), name)
    if not as_json:
        print_table(table)


@click.command()
@config_option
@json_option
@reports_errors
def dkim(config_path: Path, as_json: bool) -> None:
    """Print the DNS records of the DKIM keys: one TXT record for each key of the configuration.

    \b
    Example:
      openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out news.pem
      zonemta dkim -c config/zonemta.yaml
    """
    config = read_config(config_path)
    for keys in load_keys(config.dkim).values():
        for key in keys:
            name, text = key.record()
            if as_json:
                print_json({"name": name, "type": "TXT", "text": text})
            else:
                parts = " ".join(f'"{text[at : at + 255]}"' for at in range(0, len(text), 255))
                click.echo(f"{name}. TXT {parts}")
    if not config.dkim.keys and not as_json:
        click.echo(f"{config_path} has no DKIM keys (dkim.keys)")


@click.command()
@click.argument("name")
@click.password_option(help="The password; prompted for when not given.")
def password(name: str, password: str) -> None:
    """Print a line for the users file of a listener: the name and the Argon2 hash of the password.

    \b
    Example:
      zonemta password newsletter >> config/users
    """
    if not is_user_name(name) or not password:
        raise click.UsageError(
            "NAME must not be empty, contain ':' or begin with '#'; the password must not be empty"
        )
    click.echo(f"{name}:{hash_password(password)}")
