"""Posts the events of a relay to a web server, each at least once, in the order of each node.

python docs/examples/forward_events.py EVENTS URL STATE [SECONDS]

EVENTS is the directory of the event log, STATE a file of this program. A request has events of one sealed segment as JSON lines. What a server
does not take with 2xx is posted again after SECONDS (5). Run it beside the relay, or where a copy of the log is; it needs nothing of the relay.
"""

import io
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import zstandard

LINES = 1000  # in a request


def segments(events: Path, done: dict[str, list[str | int]]) -> Iterator[tuple[str, str, Path]]:
    """Node, name and path of each sealed segment that is not done, in the order of its node."""
    for path in sorted(events.glob("date=*/hour=*/*.jsonl.zst"), key=lambda path: path.name):
        name = path.name.removesuffix(".jsonl.zst")
        node = name.partition("-")[0]
        if name >= str(done.get(node, ["", 0])[0]):
            yield node, name, path


def lines_of(path: Path) -> Iterator[bytes]:
    """The records of a segment."""
    with path.open("rb") as file:
        frames = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from io.BufferedReader(frames)


def post(url: str, lines: list[bytes]) -> None:
    """Raises OSError."""
    headers = {"Content-Type": "application/x-ndjson"}
    urllib.request.urlopen(urllib.request.Request(url, b"".join(lines), headers), timeout=30).close()


def forward(events: Path, url: str, state: Path) -> None:
    """Post what is new. Raises OSError; what was taken before that is not posted again."""
    done = json.loads(state.read_text()) if state.exists() else {}
    for node, name, path in segments(events, done):
        before, taken = done.get(node, ["", 0])
        lines = lines_of(path)
        taken = taken if name == before else 0
        for _ in islice(lines, taken):
            pass
        while some := list(islice(lines, LINES)):
            post(url, some)
            taken += len(some)
            done[node] = [name, taken]
            new = state.with_name(f"{state.name}.new")
            new.write_text(json.dumps(done))
            new.replace(state)


if __name__ == "__main__":
    wait_s = float(sys.argv[4]) if len(sys.argv) > 4 else 5.0
    while True:
        try:
            forward(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
        except OSError as exc:
            print(f"{sys.argv[2]}: {exc}; again in {wait_s:g} s", file=sys.stderr)
        time.sleep(wait_s)
