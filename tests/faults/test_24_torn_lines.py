"""Point 24: a line of the event log that is no JSON: what it costs is counted, and no other event."""

import json
from pathlib import Path

import pytest

from tests.pipeline.segments import delivered
from zonemta_py.core.codec import to_json
from zonemta_py.core.errors import SegmentDamaged
from zonemta_py.events.segment_reading import verify_segment
from zonemta_py.events.segments import Segment

event_log = pytest.importorskip("zonemta_py.pipeline.events.log")

LINES = 10  # of each of two frames
TORN = [
    b"17",
    b"",
    b"[1]",
    b'{"seq":"x","position":0}',
    b'{"node":"abcdef","seq":5,"position":0,"event":"deliv',
]


def sealed(directory: Path, torn: dict[int, bytes]) -> Path:
    """A segment of two frames, sealed with its digest; the lines in ``torn`` are no events."""
    segment = Segment(directory, "abcdef", 1)
    for begin in (1, 1 + LINES):
        lines = [torn.get(n, to_json(delivered(n))) for n in range(begin, begin + LINES)]
        segment.append(b"".join(line + b"\n" for line in lines), begin + LINES - 1)
    path = segment.seal(1_799_978_400_000)
    assert path is not None
    return path


@pytest.mark.parametrize("line", TORN)
@pytest.mark.parametrize("at", [1, 5, 10, 11, 20])
def test_it_is_named_and_counted_and_the_others_are_read(tmp_path: Path, at: int, line: bytes) -> None:
    path = sealed(tmp_path, {at: line})
    content, name = path.read_bytes(), str(path)
    with pytest.raises(SegmentDamaged, match="damaged at byte"):
        verify_segment(content, name)
    _, problem, node, _, readable, unread, _, first, last, runs = event_log.examine_segment(
        name, content
    )
    assert name in problem
    assert node == "abcdef"
    assert readable + unread == 2 * LINES
    assert unread <= 2, "the line, and where it has no number the group before it"
    parts = {name: list(zip(runs[::2], runs[1::2], strict=True))}
    found = [
        json.loads(each)["seq"]
        for block in event_log.lines_of(content, name, parts)
        for each in block.splitlines()
    ]
    assert len(found) == len(set(found)) == readable
    assert set(range(1, 2 * LINES + 1)) - set(found) <= {at - 1, at}
    assert (first, last) == (min(found), max(runs))


def test_a_frame_without_events_costs_no_other(tmp_path: Path) -> None:
    path = sealed(tmp_path, dict.fromkeys(range(1, LINES + 1), b"{"))
    row = event_log.examine_segment(str(path), path.read_bytes())
    assert row[4:6] == (LINES, LINES)


def test_a_whole_segment_is_read_as_before(tmp_path: Path) -> None:
    path = sealed(tmp_path, {})
    assert event_log.examine_segment(str(path), path.read_bytes())[1:6] == (
        "",
        "abcdef",
        0,
        2 * LINES,
        0,
    )
