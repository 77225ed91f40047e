"""kill -9 of a real relay at every named point and at random moments; and a power cut.

Every message answered 250 has its outcome. One that arrives twice was in a transaction that an
``inflight/`` key named, or its answer was lost: the ledger says ``uncertain`` for each.
"""

import random
from pathlib import Path

import pytest

from tests.crash.rounds import POINTS, Rounds
from tests.crash.verdict import assert_nothing_lost
from tests.kit.load import ComparingSink, body_of
from zonemta_py.sink.server import Received


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_killed_at_points(directory: Path) -> None:
    """Some of them; ``make crash`` has all, and seeds kill in front of any call (``tests/simulation``)."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    points = rng.sample(sorted(POINTS), 10)
    async with Rounds(directory, rng) as rounds:
        for point in points:
            await rounds.at_point(point)
        for _ in range(3):
            await rounds.at_random()
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)
    assert set(verdict.kills) == {*points, "random"}


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_moved_restored_and_on_a_machine_with_a_wrong_clock(directory: Path, store: str) -> None:
    """What an operator does after a crash loses no more than a restored backup cannot know."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    async with Rounds(directory, random.Random(seed), store=store) as rounds:
        await rounds.wrong_clock()
        await rounds.transferred()
        await rounds.restored()
        await rounds.wrong_clock()
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_hung_owner_of_a_queue_in_redis(directory: Path) -> None:
    async with Rounds(directory, random.Random(2), store="redis") as rounds:
        await rounds.hung()
        await rounds.at_random()
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_killed_while_it_finishes_the_export_of_the_life_before(
    directory: Path, store: str
) -> None:
    """Records are in an open segment and in the outbox; the next starts die before and after they delete keys."""
    async with Rounds(directory, random.Random(1), store=store) as rounds:
        for _ in range(2):
            await rounds.at_point("segment.appended", 2)
            await rounds.at_point("outbox.unwritten", 1)
            await rounds.at_point("outbox.written", 1)
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)


def test_a_wrong_byte_is_seen() -> None:
    """A receiver compares each body with that of its message."""
    sink = ComparingSink()
    for number in (1, 2, 20, 200):
        body = body_of(number)
        for data in (body, body[:-1] + b"\r"):
            sink.received(Received(f"{number}@senders.example", [], b"A: b\r\n\r\n" + data, "", "", ""))
    assert sink.wrong == [f"{number}@senders.example" for number in (1, 2, 20, 200)]
    assert sink.compared == 8
