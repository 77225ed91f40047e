"""The group ``zonemta queue`` with all its commands."""

import click

from zonemta_py.cli.common import LazyGroup

_HERE = "zonemta_py.cli.queue"
COMMANDS = {
    "summary": f"{_HERE}.inspect:summary",
    "list": f"{_HERE}.inspect:list_",
    "show": f"{_HERE}.inspect:show",
    "shape": f"{_HERE}.inspect:shape",
    "destinations": f"{_HERE}.inspect:destinations",
    "tenants": f"{_HERE}.inspect:tenants",
    "state": f"{_HERE}.inspect:state",
    "body": f"{_HERE}.inspect:body",
    "check": f"{_HERE}.inspect:check",
    "stats": f"{_HERE}.inspect:stats",
    "unreachable": f"{_HERE}.inspect:unreachable",
    "flush": f"{_HERE}.change:flush",
    "hold": f"{_HERE}.change:hold",
    "release": f"{_HERE}.change:release",
    "delete": f"{_HERE}.change:delete",
    "bounce": f"{_HERE}.change:bounce",
    "repair": f"{_HERE}.change:repair_",
    "export": f"{_HERE}.change:export_",
    "import": f"{_HERE}.change:import_",
}


@click.group(cls=LazyGroup, commands_in=COMMANDS)
def queue() -> None:
    """Inspect and change the queue, whether the relay is running or not.

    \b
    Examples:
      zonemta queue summary -c config/zonemta.yaml
      zonemta queue list -c config/zonemta.yaml --zone bulk --state deferred
      zonemta queue flush -c config/zonemta.yaml --domain example.org
    """
