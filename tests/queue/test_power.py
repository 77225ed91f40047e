"""A power cut by the book: of LevelDB's log and of segments only what a synced write covered is sure to be there.

No shim and no process: after every commit the sizes of the files are noted, and a copy of the
database cut at any of these notes, or anywhere behind it, must keep every message acknowledged by then.
``tests/crash/test_power.py`` does the same to a whole relay, with what it really synced.
"""

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.kit.queue import Clock, accept, begin, lease, make_queue, opened, problems, settle
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.format import keys


def _sizes(directory: Path) -> dict[str, int]:
    files = (path for path in directory.glob("**/*") if path.is_file())
    return {str(path.relative_to(directory)): path.stat().st_size for path in files}


def _cut(source: Path, target: Path, synced: dict[str, int], rng: random.Random) -> None:
    """Copy ``source`` as a power cut would leave it."""
    shutil.copytree(source, target)
    for path in target.glob("**/*"):
        least = synced.get(str(path.relative_to(target)))
        if least is None and path.suffix in (".log", ".segment"):
            path.unlink()  # it was made after the last sync
        elif least is not None and least < path.stat().st_size:
            os.truncate(path, rng.choice([least, rng.randint(least, path.stat().st_size)]))


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_answered_is_there(directory: Path, seed: int) -> None:
    """Less than a write buffer, so that no compaction runs beside the copying."""
    rng, clock = random.Random(seed), Clock()
    queue = make_queue(directory / "whole", clock)
    await begin(queue)
    database = directory / "whole" / "db"
    promised: set[str] = set()
    for step in range(15):
        count = rng.randint(1, 4)
        made = await asyncio.gather(
            *(accept(queue, f"{step}-{i}@x.example", body=b"b" * rng.choice([0, 900, 150_000, 600_000]))
              for i in range(count))
        )  # fmt: skip
        promised |= set(made)
        if rng.random() < 0.5 and (held := queue.lease("default", "x.example", 1)):
            await queue.start(held)
            await settle(queue, held, OutcomeKind.DELIVERED)
            promised.discard(held.active.id)
        synced, known = _sizes(database), set(promised)
        unsettled = [asyncio.ensure_future(accept(queue, f"late-{step}@x.example", body=b"c" * 300_000))]
        for _ in range(rng.randint(0, 5)):
            await asyncio.sleep(0)
        copy = directory / f"cut-{step}"
        _cut(database, copy / "db", synced, rng)
        promised |= set(await asyncio.gather(*unsettled))
        async with opened(copy, clock) as after:
            assert problems(after.store) == []
            there = {
                keys.owner_of(k)
                for k in after.store.keys(keys.MESSAGE, keys.end_of(keys.MESSAGE))
                if k.endswith(b"#")
            }
            assert known <= there
            while held := after.lease("default", "x.example", 1):
                assert sum(map(len, after.bodies.read(held.active))) == held.active.mark.size
                await settle(after, held, OutcomeKind.DELIVERED)
    assert lease(queue, "x.example")
    await queue.close()
