"""``zonemta password``."""

import click

from zonemta_py.intake.auth import hash_password


@click.command()
@click.argument("name")
@click.password_option(help="Asked for when not given.")
def password(name: str, password: str) -> None:
    """Print a line for the users file of a listener.

    \b
    Example:
      zonemta password newsletter >> config/users
    """
    click.echo(f"{name}:{hash_password(password)}")
