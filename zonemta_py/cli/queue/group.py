"""The group ``zonemta queue`` with all its commands."""

import click

from zonemta_py.cli.common import LazyGroup

_HERE = "zonemta_py.cli.queue"
SECTIONS = {
    "Look": {
        "summary": (f"{_HERE}.counts:summary", "Count recipients by state: per zone, destination, tenant."),
        "shape": (f"{_HERE}.counts:shape", "Count recipients by destination and age."),
        "list": (f"{_HERE}.inspect:list_", "List recipients, and what they wait for."),
        "show": (f"{_HERE}.inspect:show", "Show a message without its body."),
        "body": (f"{_HERE}.inspect:body", "Print a message as it will be sent."),
        "unreachable": (f"{_HERE}.inspect:unreachable", "List addresses that do not answer."),
    },
    "Act on one message, or on all that options select": {
        "flush": (f"{_HERE}.change:flush", "Try deferred mail now."),
        "hold": (f"{_HERE}.change:hold", "Keep mail until it is released."),
        "release": (f"{_HERE}.change:release", "Release held mail."),
        "delete": (f"{_HERE}.change:delete", "Remove mail without a report."),
        "bounce": (f"{_HERE}.change:bounce", "Return mail to its senders."),
    },
    "The whole queue": {
        "check": (f"{_HERE}.inspect:check", "Verify the queue."),
        "repair": (f"{_HERE}.transfer:repair_", "Repair a damaged queue."),
        "export": (f"{_HERE}.transfer:export_", "Write the queue to a file."),
        "import": (f"{_HERE}.transfer:import_", "Read an exported queue."),
    },
}  # fmt: skip


@click.group(cls=LazyGroup, sections=SECTIONS)
def queue() -> None:
    """Inspect and change the queue, whether the relay is running or not.

    \b
    Examples:
      zonemta queue summary -c config/zonemta.yaml
      zonemta queue list -c config/zonemta.yaml --zone bulk --state deferred
      zonemta queue flush -c config/zonemta.yaml --domain example.org
    """
