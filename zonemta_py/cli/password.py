"""``zonemta password``."""

import click

from zonemta_py.intake.users import hash_password


@click.command()
@click.argument("name")
@click.password_option(help="The password; prompted for when not given.")
def password(name: str, password: str) -> None:
    """Print a line for the users file of a listener: the name and the Argon2 hash of the password.

    \b
    Example:
      zonemta password newsletter >> config/users
    """
    if not name or ":" in name or name.startswith("#") or not password:
        raise click.UsageError(
            "NAME must not be empty, contain ':' or begin with '#'; the password must not be empty"
        )
    click.echo(f"{name}:{hash_password(password)}")
