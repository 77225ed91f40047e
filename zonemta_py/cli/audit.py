"""``zonemta audit``."""

import sys
from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.requests import AuditRequest, Row
from zonemta_py.cli.common import (
    EXIT_FAILED,
    config_option,
    echo,
    json_option,
    print_json,
    print_table,
    read_config,
    reports_errors,
)
from zonemta_py.cli.progress import spinner
from zonemta_py.cli.queue.access import rows_of
from zonemta_py.core.codec import from_json
from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.events.audit import Audit
from zonemta_py.events.log import gaps, read_log


@click.command()
@config_option
@json_option
@reports_errors
def audit(config_path: Path, as_json: bool) -> None:
    """Prove from queue and event log that every accepted recipient is accounted for.

    For each zone and day of acceptance: accepted = queued + delivered + bounced + expired + deleted
    + lost. Lists every uncertain delivery: the relay crashed between the peer's reply and recording it,
    so the recipient may get the message twice. Lists every lost recipient: damage on disk destroyed it, and `queue repair`
    could not restore it. Counts recipients that other nodes accepted: other relays
    with the same event log, or this queue before an import. Names damaged and missing segments of the event log. Exits
    1 when a recipient does not have exactly one outcome or state, or the event log is not whole. The relay
    may be running.

    \b
    Example:
      zonemta audit -c config/zonemta.yaml
    """
    config = read_config(config_path)
    with spinner("reading queue and event log"):
        found = Audit()
        queue = _add_queue(found, config_path)
        damage: list[str] = []
        for record in read_log(config.events.directory, damage):
            if record["node"] != queue["node"] or not queue["seq"] or record["seq"] <= queue["seq"]:
                found.add(record, queue["node"])
        damage += gaps(config.events.directory, {queue["node"]: queue["exported"]})
    problems = damage + list(found.problems())
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
        for node, count in found.others.items():
            echo(
                f"{count} recipients were accepted by node {node}, and this queue is of node {queue['node']}"
            )
        _print(rows, found.history, problems)
    if problems:
        sys.exit(EXIT_FAILED)


def _add_queue(found: Audit, config_path: Path) -> Row:
    """Add the recipients and the outbox of the queue; returns its node and sequence numbers."""
    queue: Row = {"seq": 0, "exported": 0, "node": ""}
    for row in rows_of(config_path, AuditRequest()):
        if "seq" in row:
            queue = row
        for line in row.get("events", "").splitlines():
            found.add(from_json(line), queue["node"])
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
