"""Which files a batch changes in the filesystem store. Pure: it computes paths and contents.

    data/MSGID/contents              the body as received, chunk N at (N - 1) * 65,536
    data/MSGID/accepted, envelope    the markers ``#`` and ``*``
    data/MSGID/INDEX/metadata        JSON: from, to, metadata (zone, state, record)
    data/MSGID/INDEX/schedule        JSON: at, last_attempt
    queue/MSGID.INDEX                → ../data/MSGID/INDEX, waiting or deferred
    inflight/MSGID.INDEX             → the same, while a transaction is under way
    cleanup/MSGID                    → ../data/MSGID, while its contents are being removed
    data/.relay/SPACE/…              every other key, by its parts

The four folders and the relative links are Kannader's; its names are UUIDs, ours say what they are.
``due/`` and ``spill/`` follow from the schedules and are kept in memory only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from zonemta_py.core import clock
from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import Waiting, read_inflight, read_meta, read_waiting
from zonemta_py.storage.interface import Op

RELAY = "data/.relay"
DERIVED = (keys.DUE, keys.SPILL)
MARKERS = {b"#": "accepted", b"*": "envelope"}

Seat = tuple[str, int]  # message and index of a recipient
ValueOf = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link to ``target``, which is relative."""

    target: str


@dataclass(slots=True)
class Plan:
    """``files``: what each path becomes, None for gone. ``seats`` and ``flights`` change with it."""

    files: dict[str, bytes | Link | None] = field(default_factory=dict)
    seats: dict[Seat, bytes | None] = field(default_factory=dict)
    flights: dict[Seat, int] = field(default_factory=dict)


class Layout:
    """Where every recipient stands: ``seats`` by key, ``flights`` by transactions under way."""

    def __init__(self) -> None:
        self.seats: dict[Seat, bytes] = {}
        self.flights: dict[Seat, int] = {}

    def plan(self, ops: Iterable[Op], value_of: ValueOf) -> Plan:
        """What ``ops`` (without chunks) do to files; ``value_of`` reads what was there before."""
        plan = Plan()
        new: dict[bytes, bytes | None] = {}

        def value(key: bytes) -> bytes | None:
            return new[key] if key in new else value_of(key)

        for key, after in ops:
            if not key.startswith(DERIVED):
                self._plan_one(plan, key, value(key), after, value)
                new[key] = after
        for seat in {*plan.seats, *plan.flights}:
            self._link(plan, seat)
        return plan

    def _plan_one(
        self, plan: Plan, key: bytes, before: bytes | None, after: bytes | None, value: ValueOf
    ) -> None:
        if key.startswith((keys.WAITING, keys.DEFERRED)):
            self._recipient(plan, key, before, after, value)
        elif key.startswith(keys.MESSAGE):
            marker = MARKERS.get(key.rpartition(b"/")[2])
            name = marker or "contents"
            if marker or (after is None and key.endswith(b"/000001")):
                plan.files[f"data/{keys.owner_of(key)}/{name}"] = after
        else:
            plan.files[relay_path(key)] = after
            if key.startswith(keys.INFLIGHT):
                self._fly(plan, key, before, after)
            elif key.startswith(keys.CLEANUP):
                message = keys.owner_of(key)
                link = None if after is None else Link(f"../data/{message}")
                plan.files[f"cleanup/{message}"] = link

    def _recipient(
        self, plan: Plan, key: bytes, before: bytes | None, after: bytes | None, value: ValueOf
    ) -> None:
        data = after if after is not None else before
        if data is None:
            return
        message, record = keys.parse_recipient(key)[1], read_waiting(data)
        seat = (message, record.recipient_index)
        folder = f"data/{message}/{record.recipient_index}"
        if after is None:
            if plan.seats.get(seat, key) == key:  # not moved to its other key in this batch
                plan.seats[seat] = None
                plan.files[f"{folder}/metadata"] = plan.files[f"{folder}/schedule"] = None
            return
        meta = value(keys.meta_key(message))
        plan.seats[seat] = key
        metadata, schedule = write_recipient(key, record, read_meta(meta).sender if meta else "")
        plan.files[f"{folder}/metadata"], plan.files[f"{folder}/schedule"] = metadata, schedule

    def _fly(self, plan: Plan, key: bytes, before: bytes | None, after: bytes | None) -> None:
        for data, change in ((before, -1), (after, 1)):
            if data is not None:
                for index in read_inflight(data).indexes:
                    seat = (keys.owner_of(key), index)
                    plan.flights[seat] = plan.flights.get(seat, self.flights.get(seat, 0)) + change

    def _link(self, plan: Plan, seat: Seat) -> None:
        there = plan.seats.get(seat, self.seats.get(seat)) is not None
        flying = plan.flights.get(seat, self.flights.get(seat, 0)) > 0
        name, link = f"{seat[0]}.{seat[1]}", Link(f"../data/{seat[0]}/{seat[1]}")
        plan.files[f"queue/{name}"] = link if there and not flying else None
        plan.files[f"inflight/{name}"] = link if there and flying else None

    def take(self, plan: Plan) -> None:
        """``plan`` has been carried out."""
        for seat, key in plan.seats.items():
            if key is None:
                self.seats.pop(seat, None)
            else:
                self.seats[seat] = key
        for seat, count in plan.flights.items():
            if count > 0:
                self.flights[seat] = count
            else:
                self.flights.pop(seat, None)

    def links(self) -> dict[str, str]:
        """Every link that queue/ and inflight/ should have, with its target."""
        plan = Plan(seats=dict(self.seats))
        for seat in self.seats:
            self._link(plan, seat)
        return {path: link.target for path, link in plan.files.items() if isinstance(link, Link)}


def relay_path(key: bytes) -> str:
    """The file of a key that has no place of its own."""
    return "/".join([RELAY, *(quote(part, safe="") for part in key.decode().split("/"))])


def relay_key(parts: Iterable[str]) -> bytes:
    """The key of the file at ``parts`` below RELAY."""
    return "/".join(unquote(part) for part in parts).encode()


def write_recipient(key: bytes, record: Waiting, sender: str) -> tuple[bytes, bytes]:
    """The metadata and schedule files of a recipient."""
    zone, message, address = keys.parse_recipient(key)
    state = "deferred" if key.startswith(keys.DEFERRED) else "waiting"
    own = {"zone": zone, "state": state, "record": record}
    metadata = {"from": sender or None, "to": address, "metadata": own}
    at_ms = record.due_ms or keys.created_ms(message)
    schedule = {"at": _iso(at_ms), "last_attempt": _iso(record.last_ms) if record.last_ms else None}
    return to_json(metadata) + b"\n", to_json(schedule) + b"\n"


def read_recipient(message: str, metadata: bytes, schedule: bytes) -> tuple[bytes, Waiting]:
    """The key and record that ``write_recipient`` wrote; the schedule decides when. QueueCorrupt."""
    try:
        facts, times = from_json(metadata), from_json(schedule)
        own = facts["metadata"]
        deferred = own["state"] == "deferred"
        record = Waiting(*own["record"])._replace(
            due_ms=_ms(times["at"]) if deferred else 0, last_ms=_ms(times["last_attempt"])
        )
        key_of = keys.deferred_key if deferred else keys.waiting_key
        return key_of(own["zone"], message, facts["to"]), record
    except (ValueError, KeyError, TypeError) as exc:
        raise QueueCorrupt(f"{exc!r}") from exc


def _iso(ms: int) -> str:
    return clock.utc(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(text: Any) -> int:
    if text is None:
        return 0
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
