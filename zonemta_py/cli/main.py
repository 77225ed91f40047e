"""The command ``zonemta``: its commands in groups. A command is imported when it is used: all together take half a second."""

import click

from zonemta_py.cli.common import LazyGroup
from zonemta_py.core.version import __version__

_HERE = "zonemta_py.cli"
SECTIONS = {  # for each command its place, and its line in the help
    "Run": {
        "serve": (f"{_HERE}.serve:serve", "Run the relay in the foreground."),
        "check": (f"{_HERE}.config:check", "Validate a configuration and what it names."),
        "config": (f"{_HERE}.config:config", "Show a configuration with all defaults."),
        "reload": (f"{_HERE}.config:reload", "Let the relay read its configuration again."),
        "log-level": (f"{_HERE}.config:log_level", "Change which messages the relay logs."),
    },
    "Look": {
        "status": (f"{_HERE}.status:status", "Show how the relay is, and what is wrong."),
        "top": (f"{_HERE}.top:top", "Watch what is sent, and how fast."),
        "why": (f"{_HERE}.status:why", "Explain what a message waits for."),
        "history": (f"{_HERE}.events:history", "Show what happened to a message or an address."),
        "tail": (f"{_HERE}.events:tail", "Print events as they are written."),
        "trace": (f"{_HERE}.events:trace", "Print SMTP dialogues as they happen."),
        "audit": (f"{_HERE}.events:audit", "Prove that every recipient is accounted for."),
    },
    "Act": {
        "queue": (f"{_HERE}.queue.group:queue", "Count, list, hold, release, delete, bounce, repair mail."),
        "suspend": (f"{_HERE}.suspend:suspend", "Stop a zone, provider, domain, tenant, campaign, …"),
        "resume": (f"{_HERE}.suspend:resume", "End what was suspended."),
    },
    "Sending": {
        "shaping": (f"{_HERE}.shaping:shaping", "Show and change what limits sending to providers."),
        "warmup": (f"{_HERE}.warmup:warmup", "Show, pause and plan the warm-up of addresses."),
        "classify": (f"{_HERE}.lint:classify", "Say what a reply of a server is about."),
        "dkim": (f"{_HERE}.user:dkim", "Print the DNS records of the DKIM keys."),
    },
    "Access": {
        "tenant": (f"{_HERE}.tenant:tenant", "Show tenants, and verify their domains."),
        "user": (f"{_HERE}.user:user", "Change who may submit mail with a password."),
        "token": (f"{_HERE}.user:token", "Change who may use the HTTP interface."),
        "password": (f"{_HERE}.user:password", "Print the line of a users file."),
    },
    "Tools": {
        "submit": (f"{_HERE}.submit:submit", "Submit a message to a list."),
        "lint": (f"{_HERE}.lint:lint", "Check a message by the rules for bulk senders."),
        "pipeline": (f"{_HERE}.pipeline.group:pipeline", "Plan, send and analyse large mailings on Spark."),
        "export": (f"{_HERE}.events:export", "Write the event log as another relay's accounting."),
        "import-shaping": (f"{_HERE}.config:import_shaping", "Convert KumoMTA's or PowerMTA's shaping."),
        "sink": (f"{_HERE}.sink:sink", "Run a server that receives mail, for tests."),
        "bench": (f"{_HERE}.bench:bench", "Measure the relay on this machine."),
        "demo": (f"{_HERE}.demo:demo", "Run a bulk mailing here, in less than a minute."),
    },
}  # fmt: skip


@click.group(
    cls=LazyGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="zonemta")
def main() -> None:
    """An outbound SMTP relay for bulk mail.

    \b
    Start:   zonemta serve -c config/zonemta.yaml
    Submit:  zonemta submit list.csv --message letter.eml --from news@example.com
    Inspect: zonemta status -c config/zonemta.yaml
    Try it:  zonemta demo

    Shell completion: eval "$(_ZONEMTA_COMPLETE=bash_source zonemta)" (or zsh_source, fish_source).
    """
