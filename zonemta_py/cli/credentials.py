"""``zonemta dkim`` and ``zonemta password``."""

from pathlib import Path

import click

from zonemta_py.cli.common import config_option, json_option, print_json, read_config, reports_errors
from zonemta_py.delivery.dkim import load_keys
from zonemta_py.intake.users import hash_password, is_user_name


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
