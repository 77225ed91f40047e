"""Options that the commands which submit have in common, and what they come to."""

from pathlib import Path

import click

from zonemta_py.cli.common import fail
from zonemta_py.core.errors import ConfigError

message_option = click.option(
    "--message",
    "message_path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The message, header and body; {{column}} is replaced from the list.",
)
email_column_option = click.option(
    "--email-column", help="The column with the address.  [default: email, address or recipient]"
)
per_message_option = click.option(
    "--recipients-per-message",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="How many share one message; 1 when the message has merge fields.",
)
user_option = click.option("--user", help="Authenticate as this user.")
password_option = click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Its first line is the password.",
)
tls_option = click.option(
    "--tls",
    type=click.Choice(["off", "opportunistic", "required"]),
    default="opportunistic",
    show_default=True,
)


def read_credentials(user: str | None, password_file: Path | None) -> tuple[str, str] | None:
    """Name and password for AUTH, None without a user. Raises ConfigError."""
    if user is None:
        return None
    if password_file is None:
        fail("--user needs --password-file", 2)
    try:
        return user, password_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except OSError as exc:
        raise ConfigError(f"--password-file {password_file}: {exc.strerror}") from exc
