"""The random kills of one job, by its name."""

import random
from collections.abc import Callable
from pathlib import Path

from tests.pipeline.campaigns import relay_and_sinks
from tests.pipeline.kills.rounds import Killed, kill_at_random
from tests.pipeline.kills.scenarios import (
    RECIPIENTS,
    Compact,
    LargeReport,
    Plan,
    Report,
    Scenario,
    Send,
    Update,
)

OF_FILES: dict[str, Callable[[Path], Scenario]] = {
    "plan": Plan, "compact": Compact, "report": Report, "large-report": LargeReport, "update": Update,
}  # fmt: skip
JOBS = (*OF_FILES, "send")


async def kill_job(
    name: str, directory: Path, rng: random.Random, kills: int, sent: int = RECIPIENTS
) -> Killed:
    """``kills`` kills of the job in an empty directory. Fails as ``kill_at_random``. ``sent``: messages of a plan that is sent."""
    if name == "send":
        async with relay_and_sinks(directory) as here:
            return await kill_at_random(Send(directory, here, sent), directory, rng, kills)
    return await kill_at_random(OF_FILES[name](directory), directory, rng, kills)
