"""The key layout, frozen byte for byte."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.core.codec import from_json, pack
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.queue.format import keys
from zonemta_py.queue.format.keys import WORKER_SHIFT, WORKERS_MAX, MessageIds
from zonemta_py.queue.format.records import (
    FORMAT,
    NO_OPTIONS,
    BodyRecord,
    DeliveryOptions,
    EnvelopeRecord,
    Inflight,
    Note,
    Open,
    Origin,
    RecipientRecord,
    SealedRecord,
    SubmissionRecord,
    born,
    pack_outbox,
    pack_record,
    read_inflight,
    read_mark,
    read_meta,
    read_note,
    read_open,
    read_outbox,
    read_recipient_record,
    read_submitted,
)
from zonemta_py.queue.upkeep.startup import FORMAT_VERSION

GOLDEN = Path(__file__).parents[2] / "golden"
ID = "019a1b2c3d4e000001abcdef"


def stored(record: Any) -> bytes:
    """The bytes of a record: those with the address of a recipient, or with what is sent, have a sum."""
    return pack_record(record) if isinstance(record, SealedRecord) else pack(record)


def test_keys_are_frozen() -> None:
    """A changed key is a changed format: raise the version and convert."""
    made = [
        keys.chunk_key(ID, 1), keys.chunk_key(ID, 999_999), keys.mark_key(ID), keys.meta_key(ID),
        keys.waiting_key("bulk", ID, "zoë@example.org"), keys.deferred_key("bulk", ID, "a/b@example.org"),
        keys.due_key(1_800_000_000_000, "bulk", ID), keys.spill_key("bulk", "example.org", ID),
        keys.inflight_key(ID, 7), keys.open_key(ID), keys.cleanup_key(ID), keys.outbox_key(255),
        keys.bounce_key(ID, 3), keys.submitted_key("ab" * 16),
        keys.submitted_key("ab" * 16, "cd" * 16), keys.submitted_key("ab" * 16, "cd" * 16, "ef" * 16),
        keys.META_FORMAT, keys.META_NODE, keys.META_BOOT, keys.META_IDS,
        keys.META_STOPPED,
    ]  # fmt: skip
    assert b"\n".join(made) + b"\n" == (GOLDEN / "keys.txt").read_bytes()


def test_records_are_frozen() -> None:
    """What an older relay wrote is read by this one, byte for byte."""
    records = [
        (BodyRecord(FORMAT, 1_800_000_000_000, 70_000, 2, 0xDEADBEEF), read_mark),
        (
            EnvelopeRecord(
                FORMAT,
                "s@x.y",
                b"A: 1\r\n",
                ("bulk", "default"),
                True,
                False,
                "",
                Origin("l", "c", "h", "u", "ESMTPSA", "acme"),
                "HDRS",
                "e+3D1",
                True,
                b"\x02" * 32,
                1_700_000_000_000,
                "spring",
                ("a", "b"),
                DeliveryOptions(
                    1_800_000_000_001, 1_800_000_000_002, True, 1_800_000_000_003, "urgent", True
                ),
            ),
            read_meta,
        ),
        (
            RecipientRecord(
                FORMAT,
                3,
                "example.org",
                "u",
                2,
                1,
                1_800_000_000_000,
                5,
                451,
                "4.7.1",
                "later",
                6,
                "rfc822;x",
                "192.0.2.9",
                "blocked",
                "acme",
                2,
            ),
            read_recipient_record,
        ),
        (Inflight(FORMAT, 4, "bulk", (0, 3), 2, 9), read_inflight),
        (Open(FORMAT, 4, 9), read_open),
        (
            Note(
                FORMAT,
                "bulk",
                3,
                "x@y.z",
                "rfc822;x@y.z",
                "failed",
                False,
                2,
                9,
                "rcpt",
                550,
                "5.1.1",
                "no",
                "mx.y.z",
            ),
            read_note,
        ),
        (SubmissionRecord(FORMAT, 9, ID, b"\x01" * 16), read_submitted),
    ]
    assert (
        "\n".join(stored(record).hex() for record, _ in records) + "\n"
        == (GOLDEN / "records.hex").read_text()
    )
    for line, (record, read) in zip((GOLDEN / "records.hex").read_text().split(), records, strict=True):
        assert read(bytes.fromhex(line)) == record


def test_the_format_of_the_queue_changes_with_its_records() -> None:
    """An earlier version must refuse the queue: it would take newer records for damage, and its repair would remove them."""
    assert (FORMAT, FORMAT_VERSION) == (8, b"6"), "raise both"


def test_version_1_is_read() -> None:
    """What the first release wrote."""
    mark, meta, waiting, inflight, opened = (
        bytes.fromhex(line) for line in (GOLDEN / "records-1.hex").read_text().split()
    )
    assert read_mark(mark) == BodyRecord(1, 1_800_000_000_000, 70_000, 2, 0xDEADBEEF)
    assert (read_meta(meta).ret, read_meta(meta).envid, read_meta(meta).warned) == ("", "", False)
    assert read_recipient_record(waiting).text == "later"
    assert (read_recipient_record(waiting).notify, read_recipient_record(waiting).orcpt) == (0, "")
    assert read_inflight(inflight).indexes == (0, 3)
    assert read_open(opened).progress_ms == 9


def test_version_2_is_read() -> None:
    """What the second wrote: all but the body's hash."""
    mark, meta, waiting, *_ = (
        bytes.fromhex(line) for line in (GOLDEN / "records-2.hex").read_text().split()
    )
    assert read_mark(mark).version == 2
    assert (read_meta(meta).envid, read_meta(meta).body_hash) == ("e+3D1", b"")
    assert read_recipient_record(waiting).orcpt == "rfc822;x"


def test_version_3_is_read() -> None:
    """What the third wrote: all but when a message that goes on under another id was accepted."""
    mark, meta, waiting, *_ = (
        bytes.fromhex(line) for line in (GOLDEN / "records-3.hex").read_text().split()
    )
    assert read_mark(mark).version == 3
    assert (read_meta(meta).body_hash, read_meta(meta).born_ms) == (b"\x02" * 32, 0)
    assert born(read_meta(meta), ID) == keys.created_ms(ID)
    assert read_recipient_record(waiting).orcpt == "rfc822;x"


def test_version_4_is_read() -> None:
    """What the fourth wrote: all but the tenant, and what the submitter called the message."""
    mark, meta, waiting, *_ = (
        bytes.fromhex(line) for line in (GOLDEN / "records-4.hex").read_text().split()
    )
    assert read_mark(mark).version == 4
    assert (read_meta(meta).born_ms, read_meta(meta).origin.user) == (1_700_000_000_000, "u")
    assert (read_meta(meta).origin.tenant, read_meta(meta).campaign, read_meta(meta).tags) == (
        "",
        "",
        (),
    )
    assert read_recipient_record(waiting).submitter == "u"


def test_version_5_is_read() -> None:
    """What the fifth wrote: all but the address of the last attempt."""
    mark, meta, waiting, *_ = (
        bytes.fromhex(line) for line in (GOLDEN / "records-5.hex").read_text().split()
    )
    assert read_mark(mark).version == 5
    assert read_meta(meta).options.priority == "urgent"
    assert (read_recipient_record(waiting).orcpt, read_recipient_record(waiting).source) == (
        "rfc822;x",
        "",
    )


def test_version_6_is_read() -> None:
    """What the sixth wrote: all but the class of the last reply."""
    mark, meta, waiting, *_ = (
        bytes.fromhex(line) for line in (GOLDEN / "records-6.hex").read_text().split()
    )
    assert read_mark(mark).version == 6
    assert read_meta(meta).campaign == "spring"
    assert (read_recipient_record(waiting).source, read_recipient_record(waiting).reply_class) == (
        "192.0.2.9",
        "",
    )


def test_version_7_is_read() -> None:
    """What the seventh wrote: all but the sums and the tenant that holds a recipient."""
    mark, meta, waiting, inflight, opened, note, submitted = (
        bytes.fromhex(line) for line in (GOLDEN / "records-7.hex").read_text().split()
    )
    assert read_mark(mark).version == read_inflight(inflight).version == 7
    assert read_meta(meta).header == b"A: 1\r\n"
    assert read_recipient_record(waiting).reply_class == "blocked"
    assert read_recipient_record(waiting).held_by == ""
    assert read_note(note).mx == "mx.y.z"
    assert (read_open(opened).boot, read_submitted(submitted).message) == (4, ID)
    for record in (read_meta(meta), read_recipient_record(waiting), read_note(note)):
        assert pack_record(record) == pack_record(record._replace(version=FORMAT))


@pytest.mark.parametrize(
    ("number", "read"), [(1, read_meta), (2, read_recipient_record), (5, read_note)]
)
def test_a_flipped_bit_is_found(number: int, read: Callable[[bytes], Any]) -> None:
    """Every one, in any place of a record with the address of a recipient, or with what is sent."""
    whole = bytes.fromhex((GOLDEN / "records.hex").read_text().split()[number])
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(QueueCorrupt):
            read(bytes(data))


def test_event_lines_have_a_sum() -> None:
    lines = b'{"node":"abcdef","seq":5,"position":0,"event":"delivered"}\n'
    value = pack_outbox(lines)
    assert value == lines[:-1] + b"\t   \t\t \t  \t\t\t\t\t\t\t\t   \t\t\t \t\t\t   \t\n"
    assert from_json(value) == from_json(lines)
    assert read_outbox(value) == read_outbox(lines) == lines  # of version 7: without a sum
    for bit in range(len(value) * 8):
        data = bytearray(value)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(QueueCorrupt):
            read_outbox(bytes(data))
    for wrong in (b"", lines[:-1], lines[:-1] + b" " * 32, bytes(40) + b"}\n", b"[1]\n", b"{}\n"):
        with pytest.raises(QueueCorrupt):
            read_outbox(wrong)


def test_options_may_be_missing() -> None:
    """The first messages of version 5 had none."""
    meta = EnvelopeRecord(
        FORMAT, "s@x.y", b"", ("default",), False, False, "", Origin("", "", "", "", "")
    )
    assert read_meta(pack(tuple(meta._replace(version=7))[:-1])) == meta._replace(version=7)
    assert meta.options == NO_OPTIONS


def test_order() -> None:
    """Markers before chunks, older before newer, and a prefix keeps to itself."""
    assert keys.mark_key(ID) < keys.meta_key(ID) < keys.chunk_key(ID, 1) < keys.chunk_key(ID, 2)
    prefix = keys.zone_prefix(keys.WAITING, "a")
    assert not keys.waiting_key("a-b", ID, "x@y").startswith(prefix)
    assert prefix < keys.waiting_key("a", ID, "\U0010ffff@y") < keys.end_of(prefix)


@given(
    st.sampled_from(["default", "bulk-1", "z_9"]),
    st.text(min_size=1, max_size=40).filter(lambda t: t.isprintable()),
)
def test_recipient_keys_read_back(zone: str, address: str) -> None:
    """Whatever an address holds, slashes included."""
    assert keys.parse_recipient(keys.waiting_key(zone, ID, address)) == (zone, ID, address)
    assert keys.parse_recipient(keys.deferred_key(zone, ID, address)) == (zone, ID, address)


def test_others_read_back() -> None:
    assert keys.parse_due(keys.due_key(5, "bulk", ID)) == (5, "bulk", ID)
    assert keys.parse_spill(keys.spill_key("bulk", "127.0.0.1:25", ID)) == ("bulk", "127.0.0.1:25", ID)
    assert keys.parse_outbox(keys.outbox_key(1 << 41)) == 1 << 41
    assert keys.owner_of(keys.chunk_key(ID, 4)) == keys.owner_of(keys.inflight_key(ID, 2)) == ID
    assert keys.created_ms(ID) == int(ID[:12], 16)


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=50))
def test_ids_only_grow(times: list[int]) -> None:
    """Whatever the clock does, also across a restart."""
    ids, made = MessageIds("abcdef", ""), []
    for i, now_ms in enumerate(times):
        if i == len(times) // 2:
            ids = MessageIds("abcdef", ids.last)
        made.append(ids.next(now_ms))
    assert made == sorted(set(made))
    assert all(len(each) == keys.MESSAGE_ID_LENGTH and each.endswith("abcdef") for each in made)


def test_ids_overflow_into_the_next_ms() -> None:
    ids = MessageIds("abcdef", f"{5:012x}{(1 << WORKER_SHIFT) - 1:06x}abcdef")
    assert ids.next(5) == f"{6:012x}{0:06x}abcdef"


@given(
    st.lists(st.tuples(st.integers(0, WORKERS_MAX - 1), st.integers(0, 2**20)), min_size=1, max_size=80),
    st.integers(0, 2**20),
)
def test_ids_of_many_workers(turns: list[tuple[int, int]], floor_ms: int) -> None:
    """Each once, all above those that existed when the worker began; the queue's above all that it was given."""
    floor = f"{floor_ms:012x}{2**24 - 1:06x}abcdef"
    workers: dict[int, MessageIds] = {}
    main, made = MessageIds("abcdef", floor), []
    for worker, now_ms in turns:
        ids = workers.setdefault(worker, MessageIds("abcdef", floor, worker)) if worker else main
        made.append(ids.next(now_ms))
        if worker:
            main.note(made[-1])
    assert len(set(made)) == len(made)
    assert min(made) > floor
    assert main.next(0) > max(made)
