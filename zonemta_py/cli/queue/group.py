"""The group ``zonemta queue`` with all its commands."""

import click

from zonemta_py.cli.queue.change import bounce, delete, flush, hold, release, repair_
from zonemta_py.cli.queue.inspect import body, check, list_, show, state, stats, summary
from zonemta_py.cli.queue.transfer import export_, import_
from zonemta_py.cli.queue.unreachable import dead_addresses, unreachable


@click.group()
def queue() -> None:
    """Inspect and change the queue, whether the relay is running or not.

    \b
    Examples:
      zonemta queue summary -c config/zonemta.yaml
      zonemta queue list -c config/zonemta.yaml --zone bulk --state deferred
      zonemta queue flush -c config/zonemta.yaml --domain example.org
    """


for _command in (
    summary, list_, show, state, body, check, stats, unreachable, dead_addresses,
    flush, hold, release, delete, bounce, repair_, export_, import_,
):  # fmt: skip
    queue.add_command(_command)
