"""Kills a job at random moments, one after the other on the same output, and lets it end.

A moment is drawn from the time between the first and the last change of the output in an undisturbed run; one in five before that.
A run that ends before its moment is checked like the last one, gives that time, and gets new work. A kill may also come when the output
is complete and Java has not ended yet: the next run of ``plan`` and ``report`` says so.
"""

import os
import random
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from tests.kit.deadlines import until
from tests.pipeline.drivers import DONE_S, Job
from tests.pipeline.kills.scenarios import Scenario
from zonemta_py.core.clock import monotonic_s

SPAN_S, START_S = 1.0, 8.0  # of a run that was not measured yet: of its writing, and before
POLL_S = 0.01  # in which a change is noticed


@dataclass(slots=True)
class Killed:
    """``moments``: what was in the output at each kill. ``ended``: runs that ended before their moment. ``writing``: kills
    between the first change and the last, as far as the time between them was known.
    """

    kills: int = 0
    writing: int = 0
    ended: int = 0
    moments: list[str] = field(default_factory=list)


async def kill_at_random(scenario: Scenario, directory: Path, rng: random.Random, kills: int) -> Killed:
    """Fails when a run after a kill does not end as an undisturbed one, or its output differs."""
    found = Killed()
    span_s, is_measured = SPAN_S, False
    await scenario.add_work()
    while found.kills < kills:
        before = rng.random() < 0.2
        fraction = rng.random()
        if kills > 1 and not is_measured:  # an undisturbed run
            before, fraction = False, inf
        job = Job(directory, *scenario.arguments)
        began_s = monotonic_s()
        if before:
            await _passed(job, began_s + START_S * fraction)
        else:
            first_s = await _changed(job, scenario.output)
            last_s = await _passed(job, first_s + span_s * fraction, scenario.output)
        if not job.ended():
            await job.kill()
            found.kills += 1
            found.writing += is_measured and not before
            found.moments.append(_described(scenario.output))
            continue
        found.ended += 1
        await scenario.check(await job.result_if_new())
        if not before:
            span_s, is_measured = max(POLL_S, last_s - first_s), True
        await scenario.add_work()
    await scenario.check(await Job(directory, *scenario.arguments).result_if_new())
    return found


async def _changed(job: Job, output: Path) -> float:
    """Return when anything in the output changes, or when the job has ended: the time."""
    seen = _snapshot(output)
    await until(lambda: job.ended() or _snapshot(output) != seen, "its first change", DONE_S)
    return monotonic_s()


async def _passed(job: Job, at_s: float, output: Path | None = None) -> float:
    """Return at this time, or when the job has ended: the time of the last change of ``output`` that was seen."""
    last_s, seen = monotonic_s(), _snapshot(output) if output is not None else set()

    def is_over() -> bool:
        nonlocal last_s, seen
        if output is not None and (now := _snapshot(output)) != seen:
            last_s, seen = monotonic_s(), now
        return job.ended() or monotonic_s() >= at_s

    await until(is_over, "the moment", DONE_S)
    return last_s


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
