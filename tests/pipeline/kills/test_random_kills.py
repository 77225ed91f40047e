"""A driver is killed at a random moment; the same command, run again, completes the work. ``python -m tests.pipeline.kills`` kills more often."""

import random
from pathlib import Path

import pytest

from tests.pipeline.kills.jobs import kill_job

SENT = 2000  # messages: one round


@pytest.mark.crash
@pytest.mark.timeout(400)
@pytest.mark.parametrize("job", ["plan", "send", "compact", "update"])
async def test_killed_at_a_random_moment(spark: object, directory: Path, job: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    found = await kill_job(job, directory, random.Random(f"{seed} {job}"), 1, SENT)
    assert found.kills == 1
