"""``zonemta demo``: a bulk mailing on this machine, from an empty directory to an empty queue."""

import asyncio
import csv
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.table import Table

from zonemta_py.admin.control_client import ask
from zonemta_py.admin.requests import SummaryRequest
from zonemta_py.bench.process import CommandProcess, free_port, signals_end
from zonemta_py.cli.common import EXIT_FAILED, print_table, progress_bar, reports_errors
from zonemta_py.cli.options import DIRECTORY
from zonemta_py.config.endpoints import HostPort
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.errors import LocalError
from zonemta_py.events.accounting import RecipientHistory, read_history
from zonemta_py.sink.nameserver import NameServer
from zonemta_py.sink.script import Rule, Script, Step
from zonemta_py.sink.server import Sink
from zonemta_py.submit.client import ListSubmission, SubmissionSettings, SubmissionSummary
from zonemta_py.submit.merge import Template
from zonemta_py.submit.recipients import read_rows


def history_table(history: RecipientHistory) -> Table:
    """The counts of the event log, by zone."""
    table = Table(box=None, pad_edge=False, title="event log, in recipients", title_justify="left")
    columns = ("zone", "accepted", "delivered", "bounced", "expired", "deleted", "queued", "deferrals")
    for column in columns:
        table.add_column(column, justify="left" if column == "zone" else "right")
    for zone, counts in sorted(history.counts.items()):
        if any(counts.values()):
            values = [counts[column] for column in columns[1:6]]
            table.add_row(zone, *map(str, values), str(history.queued(zone)), str(counts["deferred"]))
    return table


def receivers_table(sinks: Mapping[str, Sink]) -> Table:
    """A table of the mail that the receivers have got."""
    table = Table(box=None, pad_edge=False, title="receivers, in recipients", title_justify="left")
    for column in ("domain", "delivered", "refused or deferred", "from"):
        table.add_column(column, justify="left" if column in ("domain", "from") else "right")
    for domain, sink in sinks.items():
        tally = sink.tally
        table.add_row(
            domain, str(tally.recipients), str(tally.refused), ", ".join(sorted(tally.by_peer))
        )
    return table


def checks(
    sinks: Mapping[str, Sink], history: RecipientHistory, submitted: int, sources: set[str]
) -> list[tuple[str, bool]]:
    """The statements that must hold, as text, each with True if it does. ``sources``: the addresses of the pools."""
    tallies = {domain: sink.tally for domain, sink in sinks.items()}
    received = sum(tally.recipients for tally in tallies.values())
    repeated = sum(
        count - 1
        for domain, tally in tallies.items()
        if domain != "sender.example"
        for count in tally.by_recipient.values()
    )
    used = {peer for tally in tallies.values() for peer in tally.by_peer}
    delivered, reports = history.total("delivered"), history.total("reports")
    accepted = history.total("accepted")
    return [
        (f"event log: {delivered:,} delivered; receivers: {received:,}", delivered == received),
        (
            f"submitted {submitted:,} + reports {reports:,} = accepted {accepted:,}",
            submitted + reports == accepted,
        ),
        (
            "accepted = delivered + bounced, nothing queued",
            all(history.queued(zone) == 0 for zone in history.counts),
        ),
        ("no recipient got a message twice", repeated == 0),
        (f"mail left from {', '.join(sorted(used))}", used == sources),
    ]


SENDER = "letters@sender.example"
RECEIVERS = {
    "garden.example": "127.0.0.11",
    "harbour.example": "127.0.0.12",
    "meadow.example": "127.0.0.13",
    "sender.example": "127.0.0.14",
}
POOLS = {"bulk": "127.0.0.2", "notices": "127.0.0.3"}
TIMEOUT_S = 60.0
TABLE_WIDTH = 120

CONFIG = """\
hostname: relay.sender.example
allow_private_destinations: true
listeners:
  - address: 127.0.0.1:0
queue: {{directory: queue, min_free_disk: 16MiB}}
events: {{directory: events, rotate: {{age: 2s}}}}
resolver: {{nameservers: ["127.0.0.1:{dns_port}"]}}
zones:
  default: {{port: {smtp_port}, retry: {{delays: [1s, 2s], give_up_after: 1h}}}}
  bulk: {{pool: bulk, recipients_per_transaction: 50}}
  notices: {{pool: notices, connections: 5}}
pools:
  bulk: [{{address: 127.0.0.2, ehlo: out1.sender.example}}]
  notices: [{{address: 127.0.0.3, ehlo: out2.sender.example}}]
routing:
  - {{header: X-Sending-Zone}}
  - {{recipient_domain: sender.example, zone: notices}}   # reports to the sender
  - {{sender_domain: sender.example, zone: bulk}}
"""

LETTER = b"""\
From: Letters <letters@sender.example>
To: {{name}} <{{email}}>
Subject: {{name}}, the June letter
MIME-Version: 1.0
Content-Type: text/plain; charset=utf-8

Dear {{name}},

this is the letter for June.
.It has a line that begins with a dot.

The list
"""

NOTICE = b"""\
From: Notices <letters@sender.example>
To: all readers
Subject: The office is closed on Friday
X-Sending-Zone: notices

One message, many recipients.
"""


@dataclass(slots=True)
class Testbed:
    """The relay of the demo, with its receivers and its name server."""

    directory: Path
    sinks: dict[str, Sink]
    names: NameServer
    relay: CommandProcess
    address: HostPort


@click.command()
@click.option(
    "--recipients",
    type=click.IntRange(10, 1_000_000),
    default=2000,
    show_default=True,
    help="Recipients of the bulk list.",
)
@click.option(
    "--keep",
    type=DIRECTORY,
    help="Create configuration, queue and event log in this directory, and keep them.",
)
@reports_errors
def demo(recipients: int, keep: Path | None) -> None:
    """Run a bulk mailing on this machine, in less than a minute.

    Starts a relay with two zones that send from 127.0.0.2 and 127.0.0.3, a name server, and receivers
    for four domains. One receiver defers every recipient once, one refuses every tenth. Personalised
    messages are sent through the zone "bulk", one message to many through "notices". At the end the
    event log is compared with the counts of the receivers, and the queue is empty.

    \b
    Example:
      zonemta demo --recipients 10000 --keep /tmp/demo
    """
    directory = keep or Path(tempfile.mkdtemp(prefix="zonemta-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    with signals_end():
        try:
            ok = asyncio.run(_demo(directory, recipients))
        finally:
            if keep is None:
                shutil.rmtree(directory, ignore_errors=True)
    if not ok:
        sys.exit(EXIT_FAILED)


async def _demo(directory: Path, recipients: int) -> bool:
    if (directory / "queue").exists():
        raise LocalError(f"{directory} holds the queue of an earlier run; choose an empty directory")
    began_s = monotonic_s()
    testbed = await _set_up(directory)
    try:
        click.echo(
            f"relay      {testbed.address}, zones bulk (from 127.0.0.2) and notices (from 127.0.0.3)"
        )
        click.echo(f"receivers  {', '.join(f'{domain} at {ip}' for domain, ip in RECEIVERS.items())}")
        letters = await _submit(
            testbed, LETTER, _list(directory, recipients), "the letter, a message each"
        )
        notices = await _submit(
            testbed,
            NOTICE,
            _list(directory, max(10, recipients // 4), "notice"),
            "the notice, 50 per message",
        )
        accepted = letters.counts["accepted"] + notices.counts["accepted"]
        await _drain(testbed, accepted)
        testbed.relay.stop()
    finally:
        testbed.relay.kill()
        for sink in testbed.sinks.values():
            await sink.close()
        testbed.names.close()
    history = read_history(directory / "events")
    ok = _report(testbed, history, accepted)
    click.echo(f"{'done' if ok else 'FAILED'} in {monotonic_s() - began_s:.1f} s")
    return ok


async def _set_up(directory: Path) -> Testbed:
    scripts = {
        "harbour.example": Script([Rule(Step.RCPT, reply="451 4.7.1 Greylisted, come back", times=1)]),
        "meadow.example": Script([Rule(Step.RCPT, recipient="*0@*", reply="550 5.1.1 No such mailbox")]),
    }
    port = free_port(*RECEIVERS.values())
    sinks = {}
    records: dict[str, dict[str, list[str]]] = {}
    for domain, ip in RECEIVERS.items():
        sinks[domain] = Sink(scripts.get(domain), hostname=f"mx.{domain}")
        await sinks[domain].start(ip, port)
        records[domain] = {"MX": [f"10 mx.{domain}."]}
        records[f"mx.{domain}"] = {"A": [ip]}
    names = NameServer(records)
    dns_port = await names.start()
    config = directory / "zonemta.yaml"
    config.write_text(CONFIG.format(dns_port=dns_port, smtp_port=port))
    relay = CommandProcess(["serve", "-c", str(config)], directory / "relay.log")
    try:
        words = await asyncio.to_thread(relay.wait_ready)
    except BaseException:
        relay.kill()
        raise
    host, _, bound = words[0].rpartition(":")
    return Testbed(directory, sinks, names, relay, HostPort(host, int(bound)))


def _list(directory: Path, recipients: int, name: str = "reader") -> Path:
    path = directory / f"{name}s.csv"
    domains = [domain for domain in RECEIVERS if domain != "sender.example"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["email", "name"])
        for number in range(recipients):
            domain = domains[number % len(domains)]
            writer.writerow([f"{name}{number // len(domains)}@{domain}", f"Zoë {number}"])
    return path


async def _submit(testbed: Testbed, letter: bytes, recipients: Path, title: str) -> SubmissionSummary:
    settings = SubmissionSettings(
        sender=SENDER,
        template=Template(letter),
        relay=testbed.address,
        ip=testbed.address.host,
        ehlo="demo.example",
        tls="off",
        credentials=None,
        connections=8,
        recipients_per_message=50,
        resend_uncertain=False,
    )
    total = sum(1 for _ in recipients.open(encoding="utf-8")) - 1
    began_s = monotonic_s()
    with progress_bar(f"submitting {title}", total) as advance:
        summary = await ListSubmission(settings, read_rows(str(recipients)), None, advance).run()
    rate = summary.counts["accepted"] / max(1e-9, monotonic_s() - began_s)
    click.echo(f"submitted  {title}: {summary.counts['accepted']:,} recipients accepted, {rate:,.0f}/s")
    if not summary.complete:
        raise LocalError(f"the submission is not complete: {summary.failure or summary.refusals[:3]}")
    return summary


async def _drain(testbed: Testbed, accepted: int) -> None:
    """Show progress until the queue is empty. Raises LocalError after TIMEOUT_S."""
    end_s = monotonic_s() + TIMEOUT_S
    shown = 0
    with progress_bar("delivering", accepted) as advance:
        while monotonic_s() < end_s:
            done = sum(sink.tally.recipients for sink in testbed.sinks.values())
            done += testbed.sinks["meadow.example"].tally.refused  # harbour.example only defers
            advance(min(done, accepted) - shown)
            shown = min(done, accepted)
            rows = await asyncio.to_thread(
                lambda: list(ask(testbed.directory / "queue", SummaryRequest()))
            )
            if not rows:
                return
            await asyncio.sleep(0.1)
    raise LocalError(f"the queue did not empty in {TIMEOUT_S:.0f} s; see {testbed.relay.log}")


def _report(testbed: Testbed, history: RecipientHistory, submitted: int) -> bool:
    """Print the event log's counts, the receivers' counts and their comparison; returns whether they agree."""
    print_table(history_table(history), TABLE_WIDTH)
    print_table(receivers_table(testbed.sinks), TABLE_WIDTH)
    found = checks(testbed.sinks, history, submitted, set(POOLS.values()))
    for text, good in found:
        mark = click.style("ok  ", fg="green") if good else click.style("BAD ", fg="red")
        click.echo(mark + text)
    return all(good for _, good in found)
