"""``zonemta password``."""

import click

from zonemta_py.intake.users import hash_password


@click.command()
@click.argument("name")
@click.password_option(help="Asked for when not given.")
def password(name: str, password: str) -> None:
    """Print a line for the users file of a listener.

    \b
    Example:
      zonemta password newsletter >> config/users
    """
    if not name or ":" in name or name.startswith("#") or not password:
        raise click.UsageError("a name without ':' and a password that is not empty are needed")
    click.echo(f"{name}:{hash_password(password)}")
