"""Which group commits of a frame are whole when some of its lines are not."""

import json

from zonemta_py.pipeline.events.coverage import whole_groups, whole_lines


def line(seq: int, position: int = 0) -> bytes:
    return json.dumps({"node": "n", "seq": seq, "position": position}, separators=(",", ":")).encode()


def frame(*lines: bytes) -> bytes:
    return b"".join(each + b"\n" for each in lines)


def test_all_lines_are_whole() -> None:
    assert whole_groups(frame(line(3), line(4), line(4, 1), line(9))) == ([(3, 9)], 4)


def test_a_line_whose_number_is_there() -> None:
    lines = frame(line(3), line(4)[:-1], line(5))
    assert whole_groups(lines) == ([(3, 3), (5, 5)], 2)
    assert whole_lines(lines, [(3, 9)]) == frame(line(3), line(5))
    assert whole_lines(lines, [(5, 9)]) == frame(line(5))


def test_a_line_of_a_group() -> None:
    """The other lines of the group are not read: it is read as a whole when the segment is restored."""
    torn = line(4, 1)[:-2]
    assert whole_groups(frame(line(3), line(4), torn, line(4, 2), line(5))) == ([(3, 3), (5, 5)], 2)


def test_a_line_whose_number_is_lost() -> None:
    """It may be one of the group before or of the one behind, unless that is whole from its beginning."""
    assert whole_groups(frame(line(3), line(4), b"17", line(6), line(7))) == ([(3, 3), (6, 7)], 3)
    assert whole_groups(frame(line(3), line(4), b"", line(6, 1), line(7))) == ([(3, 3), (7, 7)], 2)


def test_lines_that_became_one() -> None:
    joined = line(4)[:-3] + line(5)[4:]
    assert whole_groups(frame(line(3), joined, line(6), line(7))) == ([(3, 3), (6, 7)], 3)
    assert whole_groups(frame(line(3), line(4)[:20] + line(6, 1)[9:], line(6, 2), line(7))) == (
        [(3, 3), (7, 7)],
        2,
    )


def test_the_first_and_the_last_line() -> None:
    """A group that is whole from its beginning is read; of one whose first line is torn the rest is not."""
    assert whole_groups(frame(b"17", line(3), line(4))) == ([(3, 4)], 2)
    assert whole_groups(frame(line(2)[:-1], line(3), line(4))) == ([(3, 4)], 2)
    assert whole_groups(frame(line(3)[:-1], line(3, 1), line(4))) == ([(4, 4)], 1)
    assert whole_groups(frame(line(3), line(4), line(5)[:-1]))[1] == 2
    assert whole_groups(frame(line(3), line(4), line(4, 1)[:-1])) == ([(3, 3)], 1)


def test_no_line_is_whole() -> None:
    assert whole_groups(b"{\n{\n") == ([], 0)
