"""Options and parameter types that several commands share."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from zonemta_py.cli.common import EXIT_USAGE, TENANT, fail
from zonemta_py.config.endpoints import host_port
from zonemta_py.config.schema import Config
from zonemta_py.config.values import duration, moment, positive_duration
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.core.model import RENAMED_STATES, STATES

FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)


class ConfigValue(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A value that is written as in the configuration: ``host:port``, ``10m``."""

    def __init__(self, name: str, read: Callable[[object], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """The parsed value. Fails with a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as exc:
            self.fail(f"'{value}' is not {exc}", param, ctx)


class MailName(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """An address, or a domain: what cannot be one is refused. The relay makes its normal form; ``others`` are names, too."""

    def __init__(self, name: str, others: tuple[str, ...] = ()) -> None:
        self.name = name
        self._others = others

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """``value``. Fails with a usage error."""
        from zonemta_py.smtp.address import (
            normalise,
            normalise_domain,
        )  # idna is not for the start of every command

        if value not in self._others:
            try:
                (normalise_domain if self.name == "DOMAIN" else normalise)(value)
            except ValueError as exc:
                self.fail(f"'{value}': {exc}", param, ctx)
        return value


class StateName(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A state of a recipient; an earlier name of one is accepted with a warning."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The present name. Fails with a usage error."""
        renamed = RENAMED_STATES.get(value)
        if renamed is not None:
            click.secho(f"warning: the state '{value}' is now called '{renamed}'", fg="yellow", err=True)
        found: str = super().convert(renamed or value, param, ctx)
        return found


STATE = StateName(STATES)
HOST_PORT = ConfigValue("HOST:PORT", host_port)
DURATION = ConfigValue("DURATION", duration)
POSITIVE_DURATION = ConfigValue("DURATION", positive_duration)
ADDRESS = MailName("ADDRESS")
SENDER = MailName("ADDRESS", others=("", "<>"))
DOMAIN = MailName("DOMAIN")
TIME = ConfigValue("TIME", moment)


def time_ms(time: datetime | None) -> int | None:
    """The unix ms of a TIME."""
    return None if time is None else round(time.timestamp() * 1000)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that reads an event log: ``config_path``, ``directory``, ``from_`` and ``to``."""
    for option in (
        click.option("--to", type=TIME, metavar="TIME", help="Only what happened before this time."),
        click.option("--from", "from_", type=TIME, metavar="TIME", help="Nothing older (UTC), such as 2026-11-20, 2026-11-20T08:30Z, or 2d: two days ago."),
        click.option("--events", "directory", type=DIRECTORY, help="The event log.  [default: events.directory of the configuration]"),
        click.option("-c", "--config", "config_path", type=FILE, envvar="ZONEMTA_CONFIG", show_envvar=True, help="The configuration file."),
    ):  # fmt: skip
        command = option(command)
    return command


def refuse_backwards(from_: datetime | None, to: datetime | None) -> None:
    """Raise UsageError for a period that ends before it begins."""
    if from_ is not None and to is not None and to <= from_:
        raise click.UsageError("--to is not later than --from")


def event_log(config: Config | None, directory: Path | None) -> Path:
    """The event log that is meant. Raises UsageError when none is named, LocalError when there is none."""
    found = directory or (config.events.directory if config is not None else None)
    if found is None:
        raise click.UsageError("--config or --events is needed")
    from zonemta_py.events.segment_reading import has_segments  # not for the start of every command

    is_there = found.is_dir() and (directory is None or has_segments(directory))
    if not is_there:  # that of a new relay is empty
        raise LocalError(f"{found}: there is no event log here")
    return found


message_option = click.option(
    "--message",
    "message_path",
    type=FILE,
    required=True,
    help="The message, header and body; {{column}} is replaced with the value from the list, {{column|text}} with text "
    "where that is empty.",
)
email_column_option = click.option(
    "--email-column",
    metavar="NAME",
    help="The column with the address.  [default: email, address or recipient]",
)
per_message_option = click.option(
    "--recipients-per-message",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Recipients of one message; always 1 when the message has merge fields.",
)
case_sensitive_option = click.option(
    "--case-sensitive",
    is_flag=True,
    help="Addresses that differ only in upper and lower case are different recipients.",
)
user_option = click.option("--user", metavar="NAME", help="Authenticate as this user.")
password_option = click.option(
    "--password-file", type=FILE, help="Read the password from the first line of this file."
)
tls_option = click.option(
    "--tls",
    type=click.Choice(["off", "opportunistic", "required"]),
    default="opportunistic",
    show_default=True,
    help="Whether to use STARTTLS.",
)


def read_credentials(user: str | None, password_file: Path | None) -> tuple[str, str] | None:
    """User name and password for AUTH; None without a user. Raises ConfigError."""
    if user is None:
        return None
    if password_file is None:
        fail("--user needs --password-file", EXIT_USAGE)
    try:
        return user, password_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    except OSError as exc:
        raise ConfigError(f"--password-file {password_file}: {exc.strerror}") from exc


def label_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that select mail by what its submitter said of it."""
    for option in reversed(
        (
            click.option("--tenant", type=TENANT, help="Only mail of this tenant."),
            click.option("--user", help="Only mail of this user."),
            click.option(
                "--sender",
                type=SENDER,
                help="Only mail with this envelope sender; <> is the null sender.",
            ),
            click.option(
                "--sender-domain",
                type=DOMAIN,
                help="Only mail whose envelope sender is in this domain.",
            ),
            click.option("--campaign", help="Only mail with this X-Campaign."),
            click.option("--tag", help="Only mail with this tag among its X-Tags."),
        )
    ):
        command = option(command)
    return command
