"""``zonemta audit``."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.requests import AuditRequest, Row
from zonemta_py.cli.common import (
    EXIT_FAILED,
    echo,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.cli.options import FILE
from zonemta_py.cli.progress import spinner
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.core.codec import from_json
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.audit import Audit
from zonemta_py.events.log import ends_of, gaps, read_log

TOGETHER = (
    "relays that share a storage may have an event log each, and after a take-over a part of the events in each: "
    "audit all of them together (-c A.yaml -c B.yaml)"
)


@click.command()
@click.option(
    "-c",
    "--config",
    "config_paths",
    type=FILE,
    multiple=True,
    required=True,
    envvar="ZONEMTA_CONFIG",
    show_envvar=True,
    help="The configuration file; repeatable, for the relays that share a storage or an event log.",
)
@json_option
@reports_errors
def audit(config_paths: tuple[Path, ...], as_json: bool) -> None:
    """Prove from queue and event log that every accepted recipient is accounted for.

    For each zone and day of acceptance: accepted = queued + delivered + bounced + expired + deleted
    + lost. Lists every uncertain delivery: the relay crashed between the peer's reply and recording it,
    so the recipient may get the message twice. Lists every lost recipient: damage on disk destroyed it, and `queue repair`
    could not restore it. Counts recipients that other nodes accepted: other relays
    with the same event log, or this queue before an import; name the configurations of all these relays to audit them together. Names
    damaged and missing segments of the event log, and a queue that is older than it. Exits
    1 when a recipient does not have exactly one outcome or state, or the event log is not whole. The relay
    may be running.

    \b
    Examples:
      zonemta audit -c config/zonemta.yaml
      zonemta audit -c relay-a.yaml -c relay-b.yaml
    """
    found = Audit()
    with spinner("reading queue and event log"):
        problems = _fill(found, config_paths)
    problems += found.problems()
    rows = list(found.rows())
    if as_json:
        for row in rows:
            print_json(row)
        for record in found.history.uncertain:
            print_json({"uncertain": record})
        for record in found.history.lost:
            print_json({"lost": record})
        for problem in problems:
            print_json({"problem": problem})
        counts = {"problems": len(problems), "uncertain": len(found.history.uncertain)}
        print_json({**counts, "other_nodes": found.others})
    else:
        nodes = ", ".join(sorted(found.nodes))
        for node, count in found.others.items():
            echo(f"{count} recipients were accepted by node {node}, and this queue is of node {nodes}")
        _print(rows, found.history, problems)
    if problems:
        if len(config_paths) == 1 and _is_shared(config_paths[0]):
            click.echo(TOGETHER, err=True)
        sys.exit(EXIT_FAILED)


def _is_shared(config_path: Path) -> bool:
    from zonemta_py.storage.open import SHARED_STORAGES  # loads LevelDB

    return read_config(config_path).queue.store in SHARED_STORAGES


def _fill(found: Audit, config_paths: Sequence[Path]) -> list[str]:
    """Add the queues and then the event log of the configurations; returns what is wrong with the log, and with a queue beside it."""
    configs = {path: read_config(path) for path in config_paths}
    directories = list(dict.fromkeys(config.events.directory.resolve() for config in configs.values()))
    ends = {
        path: ends_of(config.events.directory) for path, config in configs.items()
    }  # before the queues
    queues: dict[str, Row] = {}
    problems: list[str] = []
    for path in configs:
        queue = _add_queue(found, path)
        node = queue["node"]
        if node in queues:
            raise click.UsageError(f"{path}: its queue is that of another configuration here")
        queues[node] = queue
        if ends[path].get(node, 0) > queue["older_than"]:
            problems.append(
                f"the queue of node {node} is older than its event log, which ends at {ends[path][node]:016x}: mail that was "
                "delivered since would be sent again; see zonemta queue repair"
            )
    for directory in directories:
        for record in read_log(directory, problems):
            last = queues[record["node"]]["seq"] if record["node"] in queues else 0
            if not last or record["seq"] <= last:
                found.add(record)
    exported = {node: queue["exported"] for node, queue in queues.items()}
    problems += gaps(directories[0], exported, others=directories[1:])
    return problems


def _add_queue(found: Audit, config_path: Path) -> Row:
    """Add the recipients and the outbox of the queue; returns its node and sequence numbers."""
    queue: Row = {"seq": 0, "exported": 0, "older_than": 0, "node": ""}
    for row in rows_of(config_path, AuditRequest()):
        if "seq" in row:
            queue = row
            found.nodes.add(queue["node"])
        for line in row.get("events", "").splitlines():
            found.add(from_json(line))
        for message, index, zone in row.get("recipients", ()):
            found.add_place(message, index, zone)
    return queue


def _print(rows: list[Row], history: RecipientHistory, problems: list[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if name in ("zone", "day") else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    print_table(table)
    for record in history.uncertain:
        echo(f"uncertain: {record['message']} to {record['recipient']} in {record['zone']}")
    for record in history.lost:
        echo(
            f"lost: {record['message']} to {record['recipient']} in {record['zone']}: {record['reason']}"
        )
    for problem in problems:
        echo(f"problem: {problem}")
    echo("every recipient is accounted for" if not problems else f"{len(problems)} problems")
