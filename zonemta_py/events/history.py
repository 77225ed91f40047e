"""The events of a message, an address or a Message-ID in the event log: sealed and open segments.

``python -m zonemta_py.events.history DIRECTORY KEY SINCE_MS LIMIT NODE EXPORTED [TENANT]`` prints them as JSON lines, and a line
with ``problem`` for each place where the log is damaged or has a gap.

Steps of a search::

    text ─▶ queries, the likeliest first ─▶ candidate segments by the index ─▶ lines with the key ─▶ parsed, compared ─▶ sorted

For an address or a Message-ID there are two searches: the messages that were accepted with it, then the events of these.

Invariants:

- A search takes CPU time that a relay would not have for mail, so it runs in a process of its own.
- The unsealed segments are opened before the sealed ones are listed: one that is sealed meanwhile is found in both, never in none.
  Records are unique by ``node``, ``seq`` and ``position``.
- Only lines with the bytes of the key are parsed; the comparison of the parsed record decides.
- Damage does not end a search; it is added to ``problems``.
- A message may have been accepted up to QUEUED_MS before its events; the clock of a seal may be behind by CLOCK_MS.

Callers: ``admin.events`` starts the process; tests call ``events_of``.

Example: ``events_of(directory, "a@b.example", 0, 100)`` returns the last 100 events of mail for this address, the oldest first.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events.index import Numbers, hash_of, may_have, read_index
from zonemta_py.events.log import gaps
from zonemta_py.events.segment_reading import frames_of, opened_unsealed, readable_parts, whole_frames
from zonemta_py.events.segments import Trailer
from zonemta_py.smtp.address import AddressError, normalise

MESSAGE = re.compile(r"[0-9a-f]{24}\Z")
HOUR_MS = 3_600_000
QUEUED_MS = 7 * 24 * HOUR_MS  # a message may have been accepted this long before its events
MESSAGES_MAX = 200  # of an address: the last ones
CLOCK_MS = HOUR_MS  # by which the clock of a seal may be behind that of an event

Record = dict[str, Any]


class Query(NamedTuple):
    """A search. ``field`` is message, recipient or message_id; ``since_ms``: the earliest time of an event.

    ``value`` is in lower case: addresses are found however they are written.
    """

    field: str
    value: str
    since_ms: int

    @property
    def key(self) -> bytes:
        """The value as it is in JSON, without quotes."""
        return to_json(self.value)[1:-1].lower()

    def matches(self, record: Record) -> bool:
        """True if a record is about the value."""
        if record["time_ms"] < self.since_ms:
            return False
        if lower(record.get(self.field)) == self.value:
            return True
        if self.field != "recipient":
            return False
        if record["event"] == "repeated":  # without addresses in earlier versions: it is about all
            addresses = record.get("addresses")
            return not addresses or any(lower(each) == self.value for each in addresses)
        recipients = record.get("recipients")
        return isinstance(recipients, list) and any(
            isinstance(each, dict) and lower(each["recipient"]) == self.value for each in recipients
        )


def lower(text: object) -> str:
    """ASCII letters in lower case, as in the index."""
    return (
        text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
        if isinstance(text, str)
        else ""
    )


def make_queries(text: str, since_ms: int) -> list[Query]:
    """The queries that ``text`` may mean, the likeliest first: a queue id, an address, a Message-ID.

    Raises LocalError for an empty text.
    """
    text = text.strip()
    if not text or "\0" in text:
        raise LocalError("expected a queue id, an address or a Message-ID")
    if MESSAGE.match(text.lower()):
        return [Query("message", text.lower(), since_ms)]
    bare = lower(text.removeprefix("<").removesuffix(">"))
    named = [Query("message_id", f"<{bare}>", since_ms), Query("message_id", bare, since_ms)]
    if "@" not in text or text.startswith("<"):
        return named
    address = text
    with suppress(AddressError):
        address = normalise(text)
    return [Query("recipient", lower(address), since_ms), *named]


def events_of(
    directory: Path,
    text: str,
    since_ms: int,
    limit: int,
    tenant: str | None = None,
    problems: list[str] | None = None,
) -> list[Record]:
    """The events, in the order of their time, at most the last ``limit``; of ``tenant`` only, if given.

    For an address and a Message-ID those of the messages that were accepted with it, up to a week before
    ``since_ms``. Damaged files count as far as they can be read, and are added to ``problems``. Raises LocalError.
    """
    found: list[Record] = []
    for query in make_queries(text, since_ms):
        found = found or _events_of(directory, query, tenant, [] if problems is None else problems)
    unique = {
        (each["node"], each["seq"], each["position"]): each
        for each in found
        if tenant in (None, each.get("tenant"))
    }
    return sorted(unique.values(), key=_order)[-limit:]


def _events_of(directory: Path, query: Query, tenant: str | None, problems: list[str]) -> list[Record]:
    if query.field == "message":
        return list(_search(directory, [query], problems))
    earlier = query._replace(since_ms=max(0, query.since_ms - QUEUED_MS))
    accepted = [
        each for each in _search(directory, [earlier], problems) if tenant in (None, each.get("tenant"))
    ]
    own = [each for each in accepted if each["event"] == "accepted"]
    # Where a policy made several messages, a repeat has the id that was in the reply.
    messages = sorted(
        {name for each in own for name in (each["message"], each.get("submission")) if name}
    )
    queries = [Query("message", message, query.since_ms) for message in messages[-MESSAGES_MAX:]]
    found = [each for each in accepted if each["time_ms"] >= query.since_ms]
    about_all = query.field == "message_id"
    later = _search(directory, queries, problems)
    return [*found, *(each for each in later if about_all or query.matches(each))]


def _order(record: Record) -> tuple[Any, ...]:
    return record["time_ms"], record["node"], record["seq"], record["position"]


def _search(directory: Path, queries: Sequence[Query], problems: list[str]) -> Iterator[Record]:
    """The records that one of ``queries`` matches. Damage that was met is added to ``problems``."""
    by_hash = {hash_of(query.key): query for query in queries}
    since_ms = min((query.since_ms for query in queries), default=0)
    for lines, hashes in _candidates(directory, since_ms, set(by_hash), problems) if queries else ():
        for value in hashes:
            yield from in_lines(lines, by_hash[value])


def in_lines(lines: bytes, query: Query) -> Iterator[Record]:
    """The records in JSON lines that a query matches. Only lines with its key are parsed."""
    key, at = query.key, 0
    searched = lines if query.field == "message" else lines.lower()
    while (at := searched.find(key, at)) >= 0:
        start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        record = from_json(lines[start:end])
        if query.matches(record):
            yield record
        at = end + 1


def _candidates(
    directory: Path, since_ms: int, values: set[int], problems: list[str]
) -> Iterator[tuple[bytes, Iterable[int]]]:
    """The lines of segments that may have keys with hashes in ``values``, and these hashes."""
    first = _first_hour(since_ms)
    with opened_unsealed(directory) as unsealed:
        for day in sorted(
            each for each in directory.glob("date=*") if each.name >= first[: len(each.name)]
        ):
            for hour in sorted(day.glob("hour=*")):
                if f"{day.name}/{hour.name}" >= first:
                    yield from _in_hour(hour, values, problems)
        for path, data in unsealed:
            yield from ((frame.lines, values) for frame in whole_frames(data, path))


def _first_hour(since_ms: int) -> str:
    """The directory of the first hour that may have events since then."""
    return f"{clock.utc(max(0, since_ms - CLOCK_MS)):date=%Y-%m-%d/hour=%H}"


def _in_hour(hour: Path, values: set[int], problems: list[str]) -> Iterator[tuple[bytes, Iterable[int]]]:
    indexed = {
        each.name: [value for value in values if may_have(each.bits, value)] for each in read_index(hour)
    }
    for path in sorted(hour.glob("*.jsonl.zst")):
        found = indexed.get(path.name, values)
        if not found:
            continue
        with suppress(FileNotFoundError):  # removed meanwhile; ``missing_events`` knows why
            yield from ((lines, found) for lines in frames_of(path, problems))


def missing_events(directory: Path, since_ms: int, exported: Mapping[str, int]) -> Iterator[str]:
    """A text for each gap in the log since then; ``exported`` as of ``gaps``. Only segments that are in no index are opened."""
    numbers: dict[Path, dict[str, Numbers | None]] = {}

    def parts_of(path: Path) -> Iterator[Trailer]:
        if path.parent not in numbers:
            numbers[path.parent] = {each.name: each.numbers for each in read_index(path.parent)}
        found = numbers[path.parent].get(path.name)
        return readable_parts(path) if found is None else iter([Trailer(0, *found)])

    return gaps(directory, exported, _first_hour(since_ms) if since_ms else "", parts_of)


def main(
    directory: str,
    text: str,
    since_ms: str,
    limit: str,
    node: str,
    exported: str,
    tenant: str | None = None,
) -> None:
    """Print the events as JSON lines, then the problems."""
    problems: list[str] = []
    log, since = Path(directory), int(since_ms)
    for record in events_of(log, text, since, int(limit), tenant, problems):
        sys.stdout.write(json.dumps(record) + "\n")
    problems += missing_events(log, since, {node: int(exported)})
    for problem in dict.fromkeys(problems):
        sys.stdout.write(json.dumps({"problem": problem}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
