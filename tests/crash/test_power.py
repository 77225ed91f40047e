"""Power cuts: data that were not synced are removed, and no acknowledged message is lost."""

import random
from pathlib import Path

import pytest

from tests.crash.disk import Disk, needs_compiler
from tests.crash.rounds import POINTS, Rounds, assert_nothing_lost


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_power_cuts(folder: Path, store: str) -> None:
    needs_compiler()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    disk = Disk(folder / "relay", folder / "scratch")
    async with Rounds(
        folder / "relay",
        rng,
        store=store,
        disk=disk,
        power_cuts=True,
    ) as rounds:
        for point in rng.sample(sorted(POINTS), 6):
            if not point.startswith(("hold", "delete")):
                await rounds.at_point(point)
        for _ in range(4):
            await rounds.at_random()
        verdict = await rounds.finish()
    assert_nothing_lost(verdict)
