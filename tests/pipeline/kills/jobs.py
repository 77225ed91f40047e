"""The random kills of one job, by its name."""

import random
from pathlib import Path

from tests.pipeline.campaigns import relay_and_sinks
from tests.pipeline.kills.rounds import Killed, kill_at_random
from tests.pipeline.kills.scenarios import Compact, Plan, Report, Send, Update

JOBS = ("plan", "send", "compact", "report", "update")


async def kill_job(name: str, directory: Path, rng: random.Random, kills: int) -> Killed:
    """``kills`` kills of the job in an empty directory. Fails as ``kill_at_random``."""
    if name == "send":
        async with relay_and_sinks(directory) as here:
            return await kill_at_random(Send(directory, here), directory, rng, kills)
    of_files = {"plan": Plan, "compact": Compact, "report": Report, "update": Update}
    return await kill_at_random(of_files[name](directory), directory, rng, kills)
