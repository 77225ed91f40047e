"""The command ``zonemta``. A subcommand is imported when it is used: all together take half a second."""

import signal
import threading
from importlib import import_module

import click

from zonemta_py import __version__

COMMANDS = {
    "serve": "zonemta_py.cli.serve",
    "check": "zonemta_py.cli.check",
    "config": "zonemta_py.cli.config",
    "reload": "zonemta_py.cli.reload",
    "submit": "zonemta_py.cli.submit",
    "lint": "zonemta_py.cli.lint",
    "queue": "zonemta_py.cli.queue.group",
    "why": "zonemta_py.cli.why",
    "audit": "zonemta_py.cli.audit",
    "sink": "zonemta_py.cli.sink",
    "bench": "zonemta_py.cli.bench",
    "demo": "zonemta_py.cli.demo",
    "tenant": "zonemta_py.cli.tenant",
    "user": "zonemta_py.cli.user",
    "token": "zonemta_py.cli.token",
    "dkim": "zonemta_py.cli.credentials",
    "password": "zonemta_py.cli.credentials",
    "pipeline": "zonemta_py.cli.pipeline.group",
}


class LazyGroup(click.Group):
    """A group whose commands are attributes of the modules in ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now; None for an unknown name."""
        module = COMMANDS.get(cmd_name)
        if cmd_name == "serve" and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGHUP, signal.SIGALRM):
                signal.signal(number, signal.SIG_IGN)  # they would end it before it can handle them
        command: click.Command | None = (
            getattr(import_module(module), cmd_name) if module is not None else None
        )
        return command


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="zonemta")
def main() -> None:
    """An outbound SMTP relay for bulk mail.

    \b
    Start:   zonemta serve -c config/zonemta.yaml
    Submit:  zonemta submit list.csv --message letter.eml --from news@example.com
    Inspect: zonemta queue summary -c config/zonemta.yaml
    Try it:  zonemta demo

    Shell completion: eval "$(_ZONEMTA_COMPLETE=bash_source zonemta)" (or zsh_source, fish_source).
    """
