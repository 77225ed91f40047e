"""The group ``zonemta token``."""

import sys
from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.tokens import NAME, Role, add_token, read_tokens, remove_token
from zonemta_py.cli.common import (
    TENANT,
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.core.errors import ConfigError, LocalError


@click.group()
def token() -> None:
    """Show and change who may use the HTTP interface: the file admin.tokens_file.

    A running relay reads the file at the next reload.

    \b
    Example:
      zonemta token add dashboard --role read -c config/zonemta.yaml
      zonemta reload -c config/zonemta.yaml
    """


def _file(config_path: Path) -> Path:
    """Raises ConfigError."""
    found = read_config(config_path).admin.tokens_file
    if found is None:
        raise ConfigError(f"{config_path}: admin.tokens_file is not set")
    return found


@token.command()
@click.argument("name")
@config_option
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.READ.value,
    show_default=True,
    help="read: look. send: POST /mail. operate: also change the queue. admin: everything.",
)
@click.option("--tenant", type=TENANT, default="", help="Only for the mail of this tenant.")
@reports_errors
def add(name: str, config_path: Path, role: str, tenant: str) -> None:
    """Add a token, and print it: it is not shown again.

    \b
    Examples:
      zonemta token add dashboard --role read -c config/zonemta.yaml
      zonemta token add acme --role send --tenant acme -c config/zonemta.yaml
    """
    if not NAME.match(name):
        raise click.UsageError(f"'{name}': letters, digits, dots and dashes")
    if tenant and tenant not in read_config(config_path).tenants:
        raise ConfigError(f"{config_path}: there is no tenant '{tenant}'")
    path = _file(config_path)
    text = add_token(path, name, Role(role), tenant)
    try:
        if sys.stdout is None:
            raise LocalError("standard output is closed: the token cannot be printed")
        echo(text)
        sys.stdout.flush()
    except BaseException:
        remove_token(path, name)  # nothing else has its text
        raise
    click.echo(f"added to {path}; `zonemta reload` lets a running relay know", err=True)


@token.command()
@click.argument("name")
@config_option
@reports_errors
def remove(name: str, config_path: Path) -> None:
    """Remove a token.

    \b
    Example:
      zonemta token remove dashboard -c config/zonemta.yaml
    """
    path = _file(config_path)
    remove_token(path, name)
    echo(f"'{name}' removed from {path}; `zonemta reload` lets a running relay know")


@token.command("list")
@config_option
@json_option
@reports_errors
def list_(config_path: Path, as_json: bool) -> None:
    """List names, roles and tenants.

    \b
    Example:
      zonemta token list -c config/zonemta.yaml
    """
    path = _file(config_path)
    table = Table("name", "role", "tenant", box=None, pad_edge=False)
    for each in read_tokens(path) if path.exists() else []:
        if as_json:
            print_json({"name": each.name, "role": each.role.value, "tenant": each.tenant})
        table.add_row(each.name, each.role.value, each.tenant)
    if not as_json:
        print_table(table)
