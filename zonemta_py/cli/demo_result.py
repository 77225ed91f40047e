"""The result of ``zonemta demo``: what the event log and the receivers say, and whether they agree."""

from collections.abc import Mapping

from rich.table import Table

from zonemta_py.events.accounting import RecipientHistory
from zonemta_py.sink.server import Sink


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
    """What the receivers have got."""
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
    """What must agree, as text, and whether it does. ``sources``: the addresses of the pools."""
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
