"""The files that a batch changes in the filesystem store. Pure: it computes paths and contents.

    data/MSGID/contents              the body as received, chunk N at (N - 1) * 65,536
    data/MSGID/accepted, envelope    the markers ``#`` and ``*``
    data/MSGID/INDEX/metadata        JSON: from, to, metadata (zone, state, record)
    data/MSGID/INDEX/schedule        JSON: at, last_attempt
    queue/MSGID.INDEX                → ../data/MSGID/INDEX, waiting or deferred
    inflight/MSGID.INDEX             → the same, while a transaction is under way
    cleanup/MSGID                    → ../data/MSGID, while its contents are being removed
    data/.relay/SPACE/…              every other key, see ``relay_path``

The four directories and the relative links are Kannader's; its names are UUIDs, these are message ids.
``due/`` and ``spill/`` follow from the schedules and are in memory only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from zonemta_py.core import clock
from zonemta_py.core.codec import crc32, from_json, to_json
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.records import (
    RecipientRecord,
    read_inflight,
    read_meta,
    read_recipient_record,
)
from zonemta_py.storage.interface import Op

# ---- Paths of the relay's own keys: every key has one path, and no two have the same.
#
#     meta/sending/…/192.0.2.1/   →   data/.relay/meta/sending/…/192.0.2.1/%v
#
# Parts of a key are percent-encoded. No encoded part has a ``%`` that two hex digits do not follow, so that names can have marks
# with one: LEAF ends the name of a file, so that ``a`` and ``a/b`` can both be keys; CONTINUED one that continues in the next
# directory, because names have at most 255 bytes; EMPTY is an empty part that is not the last one. Earlier versions wrote files
# without LEAF, and lost the ``/`` at the end of a key.

RELAY = "data/.relay"
LEAF, CONTINUED, EMPTY = "%v", "%c", "%e"
TEMPORARY = "%n"  # the end of the name of a file before its rename
TEMPORARY_EARLIER = ".new"  # of an earlier version
NAME_MAX = 200  # characters of a part in one name
_DOTS = {".": "%2E", "..": "%2E%2E"}
# How many "/" the keys of a space have whose last part may be empty.
_SLASHES = ((keys.META_SENDING, 6), (keys.META_SENDING_STATE, 4), (keys.META_LIMIT, 6))


def relay_path(key: bytes) -> str:
    """Return the path of the file for a key of the relay's own."""
    *parents, last = (quote(part, safe="") for part in key.decode().split("/"))
    names = [name for part in parents for name in _directories(part)]
    *through, name = _pieces(last)
    return "/".join((RELAY, *names, *(f"{each}{CONTINUED}" for each in through), f"{name}{LEAF}"))


def relay_key(names: Iterable[str]) -> bytes:
    """Return the key of the file whose path below RELAY has these ``names``, of this or an earlier version."""
    parts, begun = [], ""
    for name in names:
        if name.endswith(CONTINUED):
            begun += name.removesuffix(CONTINUED)
            continue
        parts.append("" if name == EMPTY else unquote(begun + name.removesuffix(LEAF)))
        begun = ""
    key = "/".join(parts).encode()
    lost = any(key.startswith(space) and key.count(b"/") < slashes for space, slashes in _SLASHES)
    return key + b"/" if lost else key


def _directories(part: str) -> Iterator[str]:
    if not part:
        yield EMPTY
        return
    *through, name = _pieces(part)
    yield from (f"{each}{CONTINUED}" for each in through)
    yield _DOTS.get(name, name)


def _pieces(part: str) -> list[str]:
    return [part[at : at + NAME_MAX] for at in range(0, len(part), NAME_MAX)] or [""]


# ---- Files of messages and recipients.

DERIVED = (keys.DUE, keys.SPILL)
MARKERS = {b"#": "accepted", b"*": "envelope"}
_DUE, _LAST = (RecipientRecord._fields.index(name) for name in ("due_ms", "last_ms"))

RecipientId = tuple[str, int]  # message, index of the recipient
ValueOf = Callable[[bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class SymbolicLink:
    """A symbolic link to ``target``, which is relative."""

    target: str


@dataclass(slots=True)
class Plan:
    """Changes: of ``files`` (None: removed), and of ``recipients`` and ``inflight`` as in ``Layout``."""

    files: dict[str, bytes | SymbolicLink | None] = field(default_factory=dict)
    recipients: dict[RecipientId, bytes | None] = field(default_factory=dict)
    inflight: dict[RecipientId, int] = field(default_factory=dict)


class Layout:
    """The state of each recipient: its key, and the number of open transactions (``inflight``)."""

    def __init__(self) -> None:
        self.recipients: dict[RecipientId, bytes] = {}
        self.inflight: dict[RecipientId, int] = {}

    def plan(self, ops: Iterable[Op], value_of: ValueOf) -> Plan:
        """Compute the changes by ``ops``, without chunks. ``value_of`` returns the value before them."""
        plan = Plan()
        new: dict[bytes, bytes | None] = {}

        def value(key: bytes) -> bytes | None:
            return new[key] if key in new else value_of(key)

        for key, after in ops:
            if not key.startswith(DERIVED):
                self._plan_one(plan, key, value(key), after, value)
                new[key] = after
        for recipient_id in {*plan.recipients, *plan.inflight}:
            self._link(plan, recipient_id)
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
                self._count_inflight(plan, key, before, after)
            elif key.startswith(keys.CLEANUP):
                message = keys.owner_of(key)
                link = None if after is None else SymbolicLink(f"../data/{message}")
                plan.files[f"cleanup/{message}"] = link

    def _recipient(
        self, plan: Plan, key: bytes, before: bytes | None, after: bytes | None, value: ValueOf
    ) -> None:
        data = after if after is not None else before
        if data is None:
            return
        message, record = keys.parse_recipient(key)[1], read_recipient_record(data)
        recipient_id = (message, record.recipient_index)
        directory = f"data/{message}/{record.recipient_index}"
        if after is None:
            if plan.recipients.get(recipient_id, key) == key:  # not moved to its other key in this batch
                plan.recipients[recipient_id] = None
                plan.files[f"{directory}/metadata"] = plan.files[f"{directory}/schedule"] = None
            return
        meta = value(keys.meta_key(message))
        plan.recipients[recipient_id] = key
        metadata, schedule = write_recipient(key, record, read_meta(meta).sender if meta else "")
        plan.files[f"{directory}/metadata"], plan.files[f"{directory}/schedule"] = metadata, schedule

    def _count_inflight(self, plan: Plan, key: bytes, before: bytes | None, after: bytes | None) -> None:
        for data, change in ((before, -1), (after, 1)):
            if data is not None:
                for index in read_inflight(data).indexes:
                    recipient_id = (keys.owner_of(key), index)
                    plan.inflight[recipient_id] = (
                        plan.inflight.get(recipient_id, self.inflight.get(recipient_id, 0)) + change
                    )

    def _link(self, plan: Plan, recipient_id: RecipientId) -> None:
        there = plan.recipients.get(recipient_id, self.recipients.get(recipient_id)) is not None
        in_flight = plan.inflight.get(recipient_id, self.inflight.get(recipient_id, 0)) > 0
        name, link = (
            f"{recipient_id[0]}.{recipient_id[1]}",
            SymbolicLink(f"../data/{recipient_id[0]}/{recipient_id[1]}"),
        )
        plan.files[f"queue/{name}"] = link if there and not in_flight else None
        plan.files[f"inflight/{name}"] = link if there and in_flight else None

    def take(self, plan: Plan) -> None:
        """Note that ``plan`` was applied."""
        for recipient_id, key in plan.recipients.items():
            if key is None:
                self.recipients.pop(recipient_id, None)
            else:
                self.recipients[recipient_id] = key
        for recipient_id, count in plan.inflight.items():
            if count > 0:
                self.inflight[recipient_id] = count
            else:
                self.inflight.pop(recipient_id, None)

    def links(self) -> dict[str, str]:
        """Return every link in queue/ and inflight/, with its target."""
        plan = Plan(recipients=dict(self.recipients))
        for recipient_id in self.recipients:
            self._link(plan, recipient_id)
        return {path: link.target for path, link in plan.files.items() if isinstance(link, SymbolicLink)}


def write_recipient(key: bytes, record: RecipientRecord, sender: str) -> tuple[bytes, bytes]:
    """Return the contents of a recipient's metadata and schedule files."""
    zone, message, address = keys.parse_recipient(key)
    state = "deferred" if key.startswith(keys.DEFERRED) else "waiting"
    own = {"zone": zone, "state": state, "record": record, "crc": _sum(message, address, record)}
    metadata = {"from": sender or None, "to": address, "metadata": own}
    at_ms = record.due_ms or keys.created_ms(message)
    schedule = {"at": _iso(at_ms), "last_attempt": _iso(record.last_ms) if record.last_ms else None}
    return to_json(metadata) + b"\n", to_json(schedule) + b"\n"


def read_recipient(message: str, metadata: bytes, schedule: bytes) -> tuple[bytes, RecipientRecord]:
    """Return the key and record of a recipient; its schedule has the due time. Raises QueueCorrupt."""
    try:
        envelope, times = from_json(metadata), from_json(schedule)
        own = envelope["metadata"]
        deferred = own["state"] == "deferred"
        record = RecipientRecord(*own["record"])
        if (
            own.get("crc", crc := _sum(message, envelope["to"], own["record"])) != crc
        ):  # an earlier version wrote none
            raise QueueCorrupt("its recipient and its checksum differ")
        record = record._replace(
            due_ms=_ms(times["at"]) if deferred else 0, last_ms=_ms(times["last_attempt"])
        )
        key_of = keys.deferred_key if deferred else keys.waiting_key
        return key_of(own["zone"], message, envelope["to"]), record
    except (ValueError, KeyError, TypeError) as exc:
        raise QueueCorrupt(f"{exc!r}") from exc


def _sum(message: str, address: str, record: Sequence[Any]) -> int:
    """The CRC-32 of what may not change in a recipient; its times are in the schedule, which other programs may change.

    ``record`` as it is in the file: that of an earlier version has fewer fields.
    """
    fields = list(record)
    fields[_DUE], fields[_LAST] = 0, 0
    return crc32(to_json((message, address, fields)))


def _iso(ms: int) -> str:
    return clock.utc(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _ms(text: Any) -> int:
    if text is None:
        return 0
    return round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
