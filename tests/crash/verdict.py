"""What a run has shown: the messages that were answered 250, compared with what arrived and with the event log."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.load import recipients_of
from tests.kit.queue import problems, unexplained
from zonemta_py.config.schema import QueueSettings
from zonemta_py.events.accounting import read_history
from zonemta_py.events.log import read_log
from zonemta_py.events.segment_reading import read_segment, sealed_segments
from zonemta_py.storage.open import open_store

ENOUGH = 100  # messages; a run with fewer acknowledged ones shows too little
FINALS = ("delivered", "bounced", "expired", "deleted", "lost")


@dataclass
class Verdict:
    """The result of a run. ``unnamed``: delivered twice without an ``uncertain`` event."""

    messages: int = 0
    acknowledged: int = 0
    recipients: int = 0
    lost: list[str] = field(default_factory=list)
    compared: int = 0  # messages whose bytes were compared by a receiver
    repeated: int = 0
    uncertain: int = 0
    unnamed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)


@dataclass
class Excused:
    """What the restore of a backup takes back, because no queue can know it.

    ``messages``: acknowledged since the backup. ``arrived``: recipients that got their mail since then, while
    the event log does not say so. ``reports``: addresses of reports on failures since then.
    """

    messages: set[int] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    reports: set[str] = field(default_factory=set)

    def add(
        self, messages: set[int], arrived: Iterable[str], before: set[str], log: list[dict[str, Any]]
    ) -> None:
        """Excuse what happened since a backup; ``before``: recipients with an outcome at its time."""
        settled = _settled(log)
        self.messages |= messages
        self.arrived |= set(arrived) - settled
        self.reports |= {_reports_to(address) for address in settled - before}


def whole_log(events: Path) -> list[dict[str, Any]]:
    """The records of the event log of a relay that was killed."""
    return list(read_log(events, []))


def settled_recipients(events: Path) -> set[str]:
    """The recipients with an outcome in the event log."""
    return _settled(whole_log(events))


def _settled(log: Iterable[dict[str, Any]]) -> set[str]:
    return {record["recipient"] for record in log if record["event"] in FINALS}


def _reports_to(address: str) -> str:
    return f"{address.partition('.')[0]}@senders.example"


def compare(
    verdict: Verdict, acknowledged: set[int], arrived: Counter[str], excused: Excused, directory: Path
) -> None:
    """Complete ``verdict``: every recipient of an acknowledged message has arrived once, or has its report."""
    where = [(path, r) for path in sealed_segments(directory / "events") for r in read_segment(path)]
    records = [record for _, record in where]

    def recorded(*names: str) -> set[str]:
        return {record["recipient"] for record in records if record["event"] in names}

    counted = acknowledged - excused.messages
    expected = {address for number in counted for address in recipients_of(number)}
    deleted = recorded("deleted")
    failed = {address for address in expected if ".no@" in address} | (recorded("expired") & expected)
    reports = {_reports_to(address) for address in failed - deleted} - excused.reports
    verdict.acknowledged, verdict.recipients = len(acknowledged), len(expected)
    verdict.lost = sorted(((expected - failed) | reports) - set(arrived) - deleted)

    named = {r["recipient"] for r in records if r["event"] == "uncertain" or r.get("uncertain")}
    twice = {address for address, count in arrived.items() if count > 1}
    verdict.uncertain, verdict.repeated = len(named), len(twice)
    verdict.unnamed = sorted(twice - named - excused.arrived)
    repeats = _repeats(where)
    finals = Counter((r["message"], r["index"]) for r in records if r["event"] in FINALS)
    accepted = sum(len(r["recipients"]) for r in records if r["event"] == "accepted")
    queued = read_history(directory / "events").queued("default")
    for what, holds in (
        (f"every record of the ledger once: {repeats[:3]}", not repeats),
        ("one final outcome for each recipient", set(finals.values()) == {1}),
        ("as many outcomes as recipients", len(finals) == accepted),
        ("an outcome for every acknowledged recipient", expected <= recorded(*FINALS)),
        ("nothing queued in the account", queued == 0),
    ):
        if not holds:
            verdict.problems.append(f"not so: {what}")


def _repeats(records: Iterable[tuple[Path, dict[str, Any]]]) -> list[str]:
    """The records of the ledger that are in it more than once, with the segments that have them."""
    places: dict[tuple[Any, ...], list[str]] = {}
    for path, record in records:
        identity = (record["node"], record["seq"], record["position"])
        places.setdefault(identity, []).append(f"{record['event']} in {path.name}")
    return [f"{identity}: {found}" for identity, found in places.items() if len(found) > 1]


def check_empty(verdict: Verdict, settings: QueueSettings) -> None:
    """Add what the check of an empty queue finds, and keys that are left over."""
    store = open_store(settings)
    verdict.problems += [f"at the end: {problem}" for problem in problems(store)]
    verdict.problems += [f"left over: {key!r}" for key in unexplained(store)]
    store.close()


def assert_nothing_lost(verdict: Verdict) -> None:
    """Check that no recipient was lost, or delivered twice without an ``uncertain`` event."""
    assert verdict.lost == [], verdict
    assert verdict.unnamed == [], verdict
    assert verdict.problems == [], verdict
    assert verdict.acknowledged > ENOUGH, verdict
    assert verdict.compared > ENOUGH // 2, verdict
