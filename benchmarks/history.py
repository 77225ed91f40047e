"""How long ``zonemta history`` takes: ``python benchmarks/history.py [DAYS]``.

Makes an event log of DAYS (30) with 1,440 segments a day, of 700 messages each, about a million a day. Sixty segments are written by the
product's writer, and the other hours are links to them with index entries of their own: the search opens as many files and
asks as many filters as for that many different ones. One message is somewhere in the middle. Prints the median of three searches in
a process of their own, as the relay starts it.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from zonemta_py.core import clock
from zonemta_py.events.index import NAME, index_entry, read_index
from zonemta_py.events.schema import Accepted, AcceptedRecipient, Delivered, encode, identify
from zonemta_py.events.segments import Segment

MESSAGES = 700
HOUR_MS = 3_600_000


def events(now_ms: int, number: int) -> list[bytes]:
    """A message that is accepted and delivered."""
    message, address = f"{now_ms:012x}{number:06x}abcdef", f"user{number}@d{number % 500}.example"
    accepted = Accepted(
        time_ms=now_ms, message=message, sender="news@news.example",
        recipients=(AcceptedRecipient(0, address, "bulk"),), size_bytes=20_000, message_id=f"<{number}@news.example>",
        listener="127.0.0.1:2525", client_ip="127.0.0.1", helo="app", user="", submitter="127.0.0.1", tenant="",
        campaign="", tags=(), not_before_ms=0, expires_ms=0, priority="", protocol="ESMTP", report_for="",
    )  # fmt: skip
    delivered = Delivered(
        time_ms=now_ms + 500, message=message, index=0, recipient=address, zone="bulk", domain=address.partition("@")[2],
        sender="news@news.example", submitter="127.0.0.1", tenant="", campaign="", tags=(), attempt=1, created_ms=now_ms,
        phase="dot", code=250, status="2.0.0", reply="2.0.0 Ok: queued as 4XYZ", mx="mx.example", mx_ip="192.0.2.1",
        source_ip="192.0.2.9", tls=True, duration_ms=120,
    )  # fmt: skip
    return [encode(accepted), encode(delivered)]


def write_segment(directory: Path, seq: int, now_ms: int, first: int, count: int) -> Path:
    """A sealed segment."""
    segment = Segment(directory, "abcdef", seq)
    for start in range(first, first + count, 50):
        bodies = [
            each
            for number in range(start, min(start + 50, first + count))
            for each in events(now_ms, number)
        ]
        segment.append(identify("abcdef", seq, bodies), seq)
        seq += 1
    sealed = segment.seal(now_ms)
    assert sealed is not None
    return sealed


def fill(directory: Path, days: int) -> int:
    """The event log; returns when the message in the middle was accepted (unix ms)."""
    began_ms = clock.now_ms() // HOUR_MS * HOUR_MS - days * 24 * HOUR_MS
    made = [write_segment(directory, 1000 * n, began_ms, MESSAGES * n, MESSAGES) for n in range(60)]
    filters = [bytes(each.bits) for each in read_index(made[0].parent)]
    for hour in range(1, days * 24):
        at = clock.utc(began_ms + hour * HOUR_MS)
        folder = directory / f"date={at:%Y-%m-%d}" / f"hour={at:%H}"
        folder.mkdir(parents=True, exist_ok=True)
        index = b""
        for n, path in enumerate(made):
            first = (hour * 60 + n) * 1000
            name = f"abcdef-{first:016x}.jsonl.zst"
            (folder / name).hardlink_to(path)
            index += index_entry(name.encode(), filters[n], (first - 1, first, first + 999))
        (folder / NAME).write_bytes(index)
    middle_ms = began_ms + days * 12 * HOUR_MS
    write_segment(directory, 10**12, middle_ms, 10**6, 1)
    return middle_ms


def main(days: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        middle_ms = fill(directory, days)
        print(f"{len(list(directory.rglob('*.zst'))):,} segments")
        message = events(middle_ms, 10**6)[0].partition(b'"message":"')[2][:24].decode()
        for key in (message, "user1000000@d0.example", "<1000000@news.example>", "absent@d0.example"):
            times = []
            for _ in range(3):
                began_s = time.perf_counter()
                command = [
                    sys.executable,
                    "-m",
                    "zonemta_py.events.history",
                    name,
                    key,
                    "0",
                    "1000",
                    "abcdef",
                    "0",
                ]
                found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                times.append(time.perf_counter() - began_s)
            print(f"{key:<28} {sorted(times)[1]:.2f} s, {len(found.splitlines())} events")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
