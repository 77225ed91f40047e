"""Power cuts: data that were not synced are removed, and no acknowledged message is lost."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.disk import Disk, needs_compiler
from tests.crash.rounds import POINTS, Rounds
from tests.crash.verdict import assert_nothing_lost


@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["leveldb", "filesystem"])
async def test_power_cuts(directory: Path, store: str) -> None:
    needs_compiler()
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    disk = Disk(directory / "relay", directory / "scratch")
    async with Rounds(
        directory / "relay",
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


WRITER = """
import os, sys
with open(sys.argv[1], "wb") as file:
    file.write(b"whole")
    file.flush()
    os.fsync(file.fileno())
os.rename(sys.argv[1], sys.argv[2])
"""


def test_a_kill_between_a_rename_and_its_line_takes_nothing_that_was_synced(directory: Path) -> None:
    """A real disk has a synced file whole under one name or the other, never cut under the new one."""
    needs_compiler()
    disk = Disk(directory / "relay", directory / "scratch")
    sealed = disk.directory / "events" / "sealed"
    sealed.parent.mkdir()
    writer = subprocess.run(
        [sys.executable, "-c", WRITER, sealed.with_suffix(".open"), sealed],
        env={**os.environ, **disk.environment, "DISK_KILLS": "rename"},
        check=False,
    )
    assert writer.returncode == -signal.SIGKILL
    disk.cut_power(random.Random(1))
    assert sealed.read_bytes() == b"whole"
