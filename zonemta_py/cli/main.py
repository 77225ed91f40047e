"""The command ``zonemta``. A subcommand is imported when it is used: all together take half a second."""

import click

from zonemta_py.cli.common import LazyGroup
from zonemta_py.core.version import __version__

COMMANDS = {
    "serve": "zonemta_py.cli.serve",
    "check": "zonemta_py.cli.config",
    "config": "zonemta_py.cli.config",
    "reload": "zonemta_py.cli.config",
    "log-level": "zonemta_py.cli.config",
    "submit": "zonemta_py.cli.submit",
    "lint": "zonemta_py.cli.lint",
    "classify": "zonemta_py.cli.lint",
    "import-shaping": "zonemta_py.cli.import_shaping",
    "queue": "zonemta_py.cli.queue.group",
    "status": "zonemta_py.cli.status",
    "top": "zonemta_py.cli.top",
    "rates": "zonemta_py.cli.status",
    "why": "zonemta_py.cli.status",
    "history": "zonemta_py.cli.events",
    "tail": "zonemta_py.cli.events",
    "trace": "zonemta_py.cli.events",
    "export": "zonemta_py.cli.events",
    "audit": "zonemta_py.cli.events",
    "sink": "zonemta_py.cli.sink",
    "bench": "zonemta_py.cli.bench",
    "demo": "zonemta_py.cli.demo",
    "suspend": "zonemta_py.cli.suspend",
    "resume": "zonemta_py.cli.suspend",
    "shaping": "zonemta_py.cli.shaping",
    "warmup": "zonemta_py.cli.warmup",
    "tenant": "zonemta_py.cli.tenant",
    "user": "zonemta_py.cli.user",
    "token": "zonemta_py.cli.token",
    "dkim": "zonemta_py.cli.user",
    "password": "zonemta_py.cli.user",
    "pipeline": "zonemta_py.cli.pipeline.group",
}


@click.group(
    cls=LazyGroup,
    commands_in={name: f"{module}:{name.replace('-', '_')}" for name, module in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
