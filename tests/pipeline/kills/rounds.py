"""Kills a job at random moments, one after the other on the same output, and lets it end.

A moment is drawn from the time between the first change of the output and the end of an undisturbed run; one in five before that
change. A run that ends before its moment is checked like the last one, and gets new work. A kill may also come when the output is complete
and Java has not ended yet: the next run of ``plan`` and ``report`` says so.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.deadlines import until
from tests.pipeline.drivers import DONE_S, Job
from tests.pipeline.kills.scenarios import Scenario
from zonemta_py.core.clock import monotonic_s

SPAN_S, START_S = 4.0, 8.0  # of a run that was not measured yet: of its writing, and before


@dataclass(slots=True)
class Killed:
    """``moments``: what was in the output at each kill. ``ended``: runs that ended before their moment."""

    kills: int = 0
    ended: int = 0
    moments: list[str] = field(default_factory=list)


async def kill_at_random(scenario: Scenario, directory: Path, rng: random.Random, kills: int) -> Killed:
    """Fails when a run after a kill does not end as an undisturbed one, or its output differs."""
    found = Killed()
    span_s = SPAN_S
    await scenario.add_work()
    while found.kills < kills:
        before = rng.random() < 0.2
        fraction = rng.random()
        job = Job(directory, *scenario.arguments)
        began_s = monotonic_s()
        if before:
            await _passed(job, began_s + START_S * fraction)
        else:
            await _changed(job, scenario.output)
            changed_s = monotonic_s()
            await _passed(job, changed_s + span_s * fraction)
        if not job.ended():
            await job.kill()
            found.kills += 1
            found.moments.append(_described(scenario.output))
            continue
        found.ended += 1
        await scenario.check(await job.result_if_new())
        if not before:
            span_s = max(0.5, monotonic_s() - changed_s)
        await scenario.add_work()
    await scenario.check(await Job(directory, *scenario.arguments).result_if_new())
    return found


async def _changed(job: Job, output: Path) -> None:
    """Return when anything in the output changes, or when the job has ended."""
    seen = _snapshot(output)
    await until(lambda: job.ended() or _snapshot(output) != seen, "its first change", DONE_S)


async def _passed(job: Job, at_s: float) -> None:
    """Return at this time, or when the job has ended."""
    await until(lambda: job.ended() or monotonic_s() >= at_s, "the moment", DONE_S)


def _snapshot(output: Path) -> set[Any]:
    found = set()
    for parent, directories, files in os.walk(output):  # which skips what is removed meanwhile
        for path in (Path(parent, name) for name in (*directories, *files)):
            try:
                found.add((path, path.lstat().st_mtime_ns))
            except OSError:
                continue
    return found


def _described(output: Path) -> str:
    """The names in the output, with those of a directory of a run."""
    names = sorted(path.name for path in output.glob("*")) if output.exists() else []
    return " ".join(names) or "nothing"
