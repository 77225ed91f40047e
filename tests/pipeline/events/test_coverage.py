"""Ranges of SEQ that were read."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.events.coverage import Coverage

RANGES = st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(RANGES, max_size=10), RANGES)
def test_it_is_a_set_of_numbers(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    """Ranges are apart, in order, and say the same as the set of their numbers, also when made anew from them."""
    coverage, numbers = Coverage(), set[int]()
    for first, last in added:
        coverage.add("a", first, last)
        numbers.update(range(first, last + 1))
    ranges = coverage.ranges.get("a", [])
    assert {n for first, last in ranges for n in range(first, last + 1)} == numbers
    assert all(one[1] + 1 < other[0] for one, other in pairwise(ranges))
    again = Coverage({node: [list(each) for each in of] for node, of in coverage.ranges.items()})
    missing = again.missing("a", *asked)
    assert {n for first, last in missing for n in range(first, last + 1)} == set(
        range(asked[0], asked[1] + 1)
    ) - numbers
    assert again.missing("b", *asked) == (asked,)
