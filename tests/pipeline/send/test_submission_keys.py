"""Submission keys, and the relay of each key."""

import random

from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.pipeline.plan.pack import submission_key
from zonemta_py.pipeline.send.submission import relays_of

addresses = st.lists(st.emails(), min_size=1, max_size=5, unique=True)


@given(addresses, st.randoms())
def test_a_key_depends_on_scope_and_recipients(found: list[str], rng: random.Random) -> None:
    key = submission_key("june", found)
    shuffled = sorted(found, key=lambda _: rng.random())
    assert submission_key("june", shuffled) == key
    assert submission_key("july", found) != key
    assert submission_key("june", [*found, "one.more@x.example"]) != key
    assert len(key) == 32
    assert all(c in "0123456789abcdef" for c in key)


def test_an_added_relay_moves_only_its_own_keys() -> None:
    """Each relay also has about its share of the keys."""
    keys = [submission_key("c", [f"{n}@x.example"]) for n in range(2000)]
    three = ("a:25", "b:25", "c:25")
    before = {key: relays_of(key, three)[0] for key in keys}
    after = {key: relays_of(key, (*three, "d:25"))[0] for key in keys}
    assert all(after[key] in (before[key], "d:25") for key in keys)
    for relay in (*three, "d:25"):
        assert 350 < sum(found == relay for found in after.values()) < 650
    assert relays_of(keys[0], ("c:25", "a:25", "b:25")) == relays_of(keys[0], three)
