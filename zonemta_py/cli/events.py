"""``zonemta history`` and ``zonemta tail``."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click
from rich.table import Table

from zonemta_py.admin.requests import AuditRequest, HistoryRequest, Row, TailRequest, TraceRequest
from zonemta_py.cli.ask import following, rows_of
from zonemta_py.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    TENANT,
    config_option,
    domain_option,
    echo,
    fail,
    json_option,
    print_json,
    print_table,
    progress_bar,
    read_config,
    reports_errors,
    shaped_text,
    spinner,
    zone_option,
)
from zonemta_py.cli.options import FILE, event_log, log_options, refuse_backwards, time_ms
from zonemta_py.config.values import duration
from zonemta_py.core import clock
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.core.files import replaced
from zonemta_py.core.text import escaped, escaped_json
from zonemta_py.events.accounting import Audit, RecipientHistory
from zonemta_py.events.export import (
    EVENTS,
    POWERMTA_COLUMNS,
    kumomta_record,
    powermta_rows,
    without_repeats,
)
from zonemta_py.events.history import missing_events
from zonemta_py.events.log import ends_of, gaps, read_log
from zonemta_py.events.schema import EVENT_NAMES
from zonemta_py.transports.tracing import normal_target

_SHOWN = (
    "zone", "attempt", "code", "status", "class", "mx", "mx_ip", "source_ip", "duration_ms", "reason", "due_ms", "report",
    "expires_ms", "new_message", "user", "client_ip", "protocol", "size_bytes", "message_id", "campaign", "tenant",
    "same_key_as", "ignored",
)  # fmt: skip


@click.command()
@click.argument("key")
@config_option
@click.option("--since", default="30d", show_default=True, help="Nothing older, such as 2h or 7d.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="The most events; the last ones are shown.",
)
@json_option
@reports_errors
def history(key: str, config_path: Path, since: str, limit: int, as_json: bool) -> None:
    """Show what has happened to a message, or to mail for an address: also when it was delivered long ago.

    KEY is a queue id, a recipient address, or a Message-ID. Reads the event log and
    what the relay has not yet written there. Exits 1 when there is no event, and when a part of the log that was searched is damaged or
    missing.

    \b
    Examples:
      zonemta history -c config/zonemta.yaml 019a1b2c3d4e000001abcdef
      zonemta history -c config/zonemta.yaml ann@example.org --since 2d
      zonemta history -c config/zonemta.yaml '<20261121.1@news.example.com>'
    """
    try:
        since_ms = clock.now_ms() - int(duration(since) * 1000)
    except ValueError as exc:
        raise click.BadParameter(f"found '{since}', expected {exc}", param_hint="--since") from exc
    with spinner("reading the event log"):
        rows = list(rows_of(config_path, HistoryRequest(key, since_ms, limit)))
    problems = [row["problem"] for row in rows if "problem" in row]
    for row in rows:
        if as_json:
            print_json(row)
        elif "problem" not in row:
            print_event(row)
    for text in problems:
        click.echo(f"event log: {text}", err=True)
    if len(problems) == len(rows):
        fail(f"no event of {key} since {clock.utc(since_ms):%Y-%m-%d %H:%M} UTC")
    if problems:
        sys.exit(EXIT_FAILED)


@click.command()
@config_option
@click.option("--event", type=click.Choice(EVENT_NAMES), help="Only these events.")
@zone_option
@domain_option
@click.option("--tenant", type=TENANT, help="Only mail of this tenant.")
@click.option("--message", help="Only this message.")
@json_option
@reports_errors
def tail(config_path: Path, as_json: bool, **filters: Any) -> None:
    """Print the events of the running relay as they are written, until interrupted. Exits 1 when the relay stops.

    \b
    Examples:
      zonemta tail -c config/zonemta.yaml --event bounced
      zonemta tail -c config/zonemta.yaml --domain example.org --json
    """
    with following():
        for row in rows_of(config_path, TailRequest(**filters), relay_only=True):
            if "missed" in row and not as_json:
                echo(f"… {row['missed']} events were too fast to print")
            else:
                print_json(row) if as_json else print_event(row)


def print_event(row: dict[str, Any]) -> None:
    """One line, or two with a reply."""
    who = row.get("recipient") or row.get("sender", "")
    recipients, addresses = row.get("recipients"), row.get("addresses", [])
    if isinstance(recipients, list) and recipients and isinstance(recipients[0], dict):
        addresses = [each["recipient"] for each in recipients]
    if addresses:
        others = f" and {len(addresses) - 3} others" if len(addresses) > 3 else ""
        who += f" → {', '.join(addresses[:3])}{others}"
    time = f"{clock.utc(row['time_ms']):%Y-%m-%d %H:%M:%S}.{row['time_ms'] % 1000:03d}"
    if row["event"] == "shaped":
        echo(f"{time}  {row['event']:<9} {shaped_text(row)}")
        return
    echo(f"{time}  {row['event']:<9} {row.get('message', '')}  {who}")
    parts = [f"{name}={_value(name, row[name])}" for name in _SHOWN if row.get(name)]
    if parts:
        echo("    " + " ".join(parts))
    if row.get("reply"):
        echo(f"    {row['reply']}")


def _value(name: str, value: Any) -> str:
    if name.endswith("_ms") and name != "duration_ms":
        return f"{clock.utc(value):%Y-%m-%dT%H:%M:%SZ}"
    return ", ".join(value) if name == "ignored" else str(value)


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
    """Add the queues and then the event log of the configurations; returns what is wrong with the log, and with a queue that is older."""
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


MODE = 0o640  # of a new file: it has addresses
Records = Iterable[dict[str, Any]]


@click.command()
@log_options
@click.option(
    "--format",
    "format_",
    type=click.Choice(["powermta", "kumomta"]),
    required=True,
    help="PowerMTA's accounting file (CSV with a header), or KumoMTA's log (JSON lines).",
)
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    help="Only these events; repeatable.  [default: all of them]",
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="Write to this file, whole or not at all, instead of standard output.",
)
@reports_errors
def export(
    config_path: Path | None, directory: Path | None, format_: str, events: tuple[str, ...], from_: datetime | None,
    to: datetime | None, output: Path | None,
) -> None:  # fmt: skip
    """Write the event log as another relay's accounting, with its names of the classes, for programs that read that.

    What the event log does not have is empty in the columns. The relay may be running: what it has not yet written to the event
    log, at most some seconds, is missing. Exits 1 when a segment is damaged or missing; the others are exported.

    \b
    Examples:
      zonemta export -c config/zonemta.yaml --format powermta --event delivered --event bounced -o acct.csv
      zonemta export -c config/zonemta.yaml --format kumomta --from 2026-11-20 --to 2026-11-21 | zstd > log.zst
    """
    refuse_backwards(from_, to)
    directory = event_log(read_config(config_path) if config_path else None, directory)
    damage: list[str] = []
    from_ms, to_ms = time_ms(from_), time_ms(to)
    wanted = frozenset(events or EVENTS)
    found = (
        record
        for record in without_repeats(
            read_log(directory, damage, from_.date() if from_ else None, _shown)
        )
        if record["event"] in wanted
        and (from_ms is None or record["time_ms"] >= from_ms)
        and (to_ms is None or record["time_ms"] < to_ms)
    )
    write: Callable[[Records, TextIO], None] = _write_csv if format_ == "powermta" else _write_lines
    with _opened(output) as file:
        write(found, file)
    damage += missing_events(directory, from_ms or 0, {})
    for text in damage:
        click.echo(escaped(f"event log: {text}"), err=True)
    if damage:
        sys.exit(EXIT_FAILED)


def _shown(paths: list[Path]) -> Iterator[Path]:
    """The segments, with a progress bar."""
    with progress_bar("segments", len(paths)) as advance:
        for path in paths:
            yield path
            advance(1)


def _write_csv(records: Records, file: TextIO) -> None:
    writer = csv.DictWriter(file, POWERMTA_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerows(powermta_rows(record))


def _write_lines(records: Records, file: TextIO) -> None:
    for record in records:
        found = kumomta_record(record)
        if found is not None:
            file.write(f"{escaped_json(json.dumps(found, ensure_ascii=False))}\n")


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that has its name only when the block has ended."""
    try:
        if path is None:
            yield sys.stdout
            sys.stdout.flush()
            return
        with replaced(path, MODE) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise LocalError(f"{path or 'standard output'}: {exc.strerror or exc}") from exc


COLORS = {"C": None, "S": "cyan", "": "yellow"}


@click.command()
@click.argument("target", metavar="DOMAIN|ID|IP")
@config_option
@json_option
@reports_errors
def trace(target: str, config_path: Path, as_json: bool) -> None:
    """Print the SMTP dialogues of the running relay as they happen, until interrupted. Exits 1 when the relay stops.

    A DOMAIN: sessions with its servers, and sessions of clients that name an address in it. A message's ID: the transactions
    that send it. An IP address: sessions of that client, with that server, or from that address of the relay.

    C: is what the client says, S: the server. Bodies are shown as their size, what AUTH is given as [secret]. A
    process shows at most 2,000 lines in a second, and five traces run at the same time. Sessions that are open already are shown from their next command on.

    \b
    Examples:
      zonemta trace example.org -c config/zonemta.yaml
      zonemta trace 192.0.2.25 -c config/zonemta.yaml
    """
    try:
        normal_target(target)
    except ValueError as exc:
        fail(str(exc), EXIT_USAGE)
    session = ""
    with following():
        for row in rows_of(config_path, TraceRequest(target), relay_only=True):
            if as_json:
                print_json(row)
            elif "missed" in row:
                echo(f"… {row['missed']} lines were too fast to print")
            else:
                if row["session"] != session:
                    echo(_head(row), bold=True)
                    session = row["session"]
                _print_line(row)


def _head(row: dict[str, Any]) -> str:
    where = "client" if row["side"] == "in" else "server"
    message = f", message {row['message']}" if row["message"] else ""
    return f"-- session {row['session']} with the {where} {row['peer']}{message}"


def _print_line(row: dict[str, Any]) -> None:
    time = f"{clock.utc(row['time_ms']):%H:%M:%S}.{row['time_ms'] % 1000:03d}"
    speaker = f"{row['speaker']}: " if row["speaker"] else "-- "
    echo(f"{time} {speaker}{row['text']}", COLORS[row["speaker"]])
