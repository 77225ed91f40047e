"""What must be true of a scenario when all has ended: of the events, of what was received, and of what clients know. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.clients import Submission
from tests.simulation.scenario import ARCHIVE, CONNECTIONS_MAX, FLOODING, POISON_AFTER, STOPPED
from zonemta_py.events.accounting import RecipientHistory

Records = Sequence[dict[str, Any]]  # of the event log

SYSTEM = "system"  # the address that the system chooses
FAILURES = ("bounced", "expired", "lapsed")
OUTCOMES = ("delivered", *FAILURES, "deleted")
TURNS = ("delivered", "bounced", "deferred")
REQUEUED = "requeued"  # a message that a program has settled in part: a new one follows
UNDER_WAY_MS = 60_000  # for an attempt
HOUR_MS = 3_600_000
SOON_MS = 1000  # in which a message is in its turn
_REPORT = re.compile(rb"^Message-ID: <([0-9a-f]{24})@", re.MULTILINE)
_SIGNED_BY = re.compile(r"^DKIM-Signature:[^:]*?\bd=([a-z.]+);", re.MULTILINE)
_NUMBER = re.compile(r"^Subject: message (\d+)", re.MULTILINE)
_REPORTED = re.compile(r"^Final-Recipient: rfc822;\s*(\S+)", re.MULTILINE)


@dataclass
class Pause:
    """``name``, zone or domain, was suspended for this time (unix ms)."""

    name: str
    from_ms: int
    until_ms: int = 0


def judge_recipients(
    submissions: Sequence[Submission],
    records: Records,
    history: RecipientHistory,
    received: MutableMapping[str, list[bytes]],
    *,
    keys_count: bool,
    unsure: Container[str],
) -> Iterator[str]:
    """Each recipient that was acknowledged has one outcome, and got what that says. ``received``: by recipient; it is used up.

    ``keys_count``: a message is accepted once under a submission key. Not after a clock that was ahead: keys are kept for a time.
    ``unsure``: recipients that may have it more than once.
    """
    outcomes, accepted = defaultdict[str, list[str]](list), Counter[str]()
    for record in records:
        if record["event"] in OUTCOMES:
            outcomes[record["recipient"]].append(record["event"])
        elif record["event"] == REQUEUED:
            accepted[record["recipient"]] -= 1  # that of a new message follows
        elif record["event"] == "accepted":
            accepted.update(each["recipient"] for each in record["recipients"])
    uncertain = {record.get("recipient") for record in history.uncertain}
    for submission in submissions:
        mail, least = submission.mail, submission.accepted
        most = least + submission.unknown
        if mail.key:
            least, most = min(least, 1), min(most, 1) if keys_count else most
        body = mail.data.partition(b"\r\n\r\n")[2]
        for name in mail.recipients:
            ends, copies = outcomes[name], received.pop(name, [])
            delivered = ends.count("delivered")
            if not least <= accepted[name] <= most or len(ends) != accepted[name]:
                yield f"{name}: {least} to {most} acknowledged, accepted {accepted[name]} times, outcomes {ends}"
            elif len(copies) < delivered:
                yield f"{name}: delivered {delivered} times, received {len(copies)} times"
            elif len(copies) > delivered and name not in uncertain and name not in unsure:
                yield f"{name}: {ends}, and received {len(copies)} times, which no event names"
            if any(not each.endswith(body) for each in copies):
                yield f"{name}: other bytes"
    for sender in dict.fromkeys(each.mail.sender for each in submissions if each.mail.sender):
        yield from _judge_reports(sender, records, received.pop(sender, []))
    yield from (f"{name}: received, and never submitted" for name in received)
    yield from (f"two outcomes: {each}" for each in history.repeated)


def _judge_reports(sender: str, records: Records, received: Sequence[bytes]) -> Iterator[str]:
    """Each recipient of ``sender`` that failed is in one report, as far as all reports on its message have arrived."""
    failed = defaultdict[str, list[str]](list)
    reports = defaultdict[str, set[str]](set)
    for record in records:
        if record["event"] in FAILURES and record["sender"] == sender:
            failed[record["message"]].append(record["recipient"])
        elif record["event"] == "accepted" and record["report_for"]:
            reports[record["report_for"]].add(record["message"])
    named: dict[str, list[str]] = {}  # by report; one may arrive twice
    for data in received:
        found = _REPORT.search(data)
        if found is not None:
            named[found[1].decode()] = _REPORTED.findall(data.decode())
    for message, recipients in failed.items():
        if not reports[message]:
            yield f"message {message}: no report on {recipients}"
        elif named.keys() >= reports[message]:
            found_in = sorted(name for report in reports[message] for name in named[report])
            if found_in != sorted(recipients):
                yield f"message {message}: {recipients} failed, the reports are on {found_in}"


def judge_signatures(
    submissions: Sequence[Submission],
    copies: Iterable[bytes],
    signed: Container[str],
    *,
    has_tenants: bool,
) -> Iterator[str]:
    """Mail that is not signed by its author's domain, if that is in ``signed``, and by no other.

    ``has_tenants``: the domains are theirs. Then mail of this program, which is of none, is not signed.
    """
    by = {each.mail.number: each.mail.by for each in submissions}
    for data in copies:
        header = data.partition(b"\r\n\r\n")[0].decode()
        number, author = _NUMBER.search(header), header.rpartition("\r\nFrom: ")[2].partition("\r\n")[0]
        domain = author.rpartition("@")[2]
        is_own = number is not None and not (has_tenants and by[int(number[1])] == "program")
        found = _SIGNED_BY.findall(header)
        if found != [domain] * (domain in signed and is_own):
            yield f"mail of {author} is signed by {found}"


def judge_keys(submissions: Sequence[Submission]) -> Iterator[str]:
    """Messages that were refused for a key that only others have used."""
    used = Counter((each.mail.owner, each.mail.key) for each in submissions)
    for each in submissions:
        if " submission key " in each.refusal and used[each.mail.owner, each.mail.key] == 1:
            yield f"message {each.mail.number} is refused for the key of others: {each.refusal}"


def judge_held(records: Records, ends: int) -> Iterator[str]:
    """Mail that is held because the relay was killed in the middle of it: that takes as many of its ``ends``."""
    for record in records:
        if record["event"] == "held" and STOPPED in record["reason"] and ends < POISON_AFTER:
            yield f"{record['recipient']} is held, after {ends} ends of the relay: {record['reason']}"


def judge_pauses(pauses: Sequence[Pause], records: Records, domains: Container[str]) -> Iterator[str]:
    """What was delivered to ``domains``, whose hosts answer at once, while it was suspended, and had not begun before.

    A program gets mail of any domain, for it is not sent there.
    """
    for record in records:
        domain = record.get("recipient", "").rpartition("@")[2]
        if record["event"] != "delivered" or domain not in domains:
            continue
        at_ms, names = record["time_ms"], {f"zone:{record['zone']}"}
        if record["zone"] != ARCHIVE:
            names.add(f"domain:{domain}")
        for pause in pauses:
            is_of_it = pause.name in names
            if is_of_it and pause.from_ms + UNDER_WAY_MS < at_ms < pause.until_ms:
                yield f"{record['recipient']} is delivered at {at_ms}, while {pause.name} is suspended"


def judge_rules(records: Records, domains: Container[str]) -> Iterator[str]:
    """What was delivered to ``domains`` from an address while a rule had paused it there, and had not begun before."""
    pauses = [
        (record["provider"], record["address"], record["time_ms"], int(record["to"].rpartition(" ")[2]))
        for record in records
        if record["event"] == "shaped" and record["what"] == "pause" and record["to"] != "full"
    ]
    for record in records:
        if record["event"] != "delivered" or record["domain"] not in domains:
            continue
        for provider, address, from_ms, until_ms in pauses:
            is_of_it = record["provider"] == provider and address in (record["source_ip"], SYSTEM)
            if is_of_it and from_ms + UNDER_WAY_MS < record["time_ms"] < until_ms:
                yield f"{record['recipient']} is delivered from {address} at {record['time_ms']}, paused until {until_ms}"


def judge_flood(changes: Mapping[str, Any], records: Records) -> Iterator[str]:
    """Messages that were accepted beyond the limit of an hour of the tenant that floods."""
    limits = changes.get("tenants", {}).get(FLOODING, {}).get("limits")
    if not limits:
        return
    most = int(limits["messages"][0].partition("/")[0])
    times_ms = sorted(
        record["time_ms"]
        for record in records
        if record["event"] == "accepted" and record["tenant"] == FLOODING and not record["report_for"]
    )
    for first_ms, over_ms in zip(times_ms, times_ms[most:], strict=False):
        if over_ms - first_ms < HOUR_MS:
            yield f"{FLOODING}: more than {most} messages in the hour from {first_ms}"


def judge_turns(records: Records, domains: Container[str]) -> Iterator[str]:
    """Recipients in ``domains`` of which a tenant had to wait for more mail of the one that floods than for turns with it.

    A turn is a message; the first outcome of an attempt counts, so that what an operator deletes has none, nor has what is too old: all
    of that ends with one attempt.
    """
    accepted_ms = {
        record["message"]: record["time_ms"] for record in records if record["event"] == "accepted"
    }
    first = dict[
        str, tuple[str, str, str, str, int]
    ]()  # by recipient: where to, whose message, when it was sent
    held = {record["recipient"] for record in records if record["event"] == "held"}
    for record in records:
        if record["event"] not in TURNS or record["domain"] not in domains:
            continue
        if record["attempt"] == 1 and "duration_ms" in record and record["recipient"] not in first:
            sent_ms = record["time_ms"] - record["duration_ms"]
            first[record["recipient"]] = (
                record["domain"], record["zone"], record["tenant"], record["message"], sent_ms,
            )  # fmt: skip
    for name, (domain, zone, tenant, message, end_ms) in first.items():
        if tenant in ("", FLOODING) or name in held:
            continue
        begin_ms = accepted_ms[message] + SOON_MS
        sent = {
            (owner, each)
            for of, through, owner, each, at_ms in first.values()
            if (of, through) == (domain, zone) and begin_ms < at_ms < end_ms
        }
        between = Counter(owner for owner, _ in sent)
        if between[FLOODING] > between[tenant] + 2 * CONNECTIONS_MAX:
            yield f"{name} of {tenant} waited for {between[FLOODING]} of {FLOODING}, and {between[tenant]} of its own"
