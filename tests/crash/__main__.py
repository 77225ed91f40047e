"""The long run: ``make crash``, or ``python -m tests.crash --kills 500``.

Rounds of kills, each on a new queue: fault points and random moments alternate, some of these with commands
and signals before the kill (hold, release, flush, delete; SIGHUP, SIGALRM, SIGTERM), or on a machine whose clock
is wrong. In each round the queue is moved through a file once, and a backup is restored once. Every third round
cuts the power as well (if there is a C compiler), every fifth runs on the filesystem store, every seventh on Redis,
where a relay hangs for longer than its lease. Exits with 1 when a recipient was lost, or delivered twice without an
``uncertain`` event.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.crash.disk import Disk
from tests.crash.rounds import POINTS, Rounds
from tests.crash.verdict import Verdict
from tests.kit.servers import redis_program
from zonemta_py.core.clock import monotonic_s

KILLS_A_ROUND = 25
NO_KILLS = 2  # of these: a queue is moved, and a backup is restored


async def _round(number: int, points: list[str], rng: random.Random, kills: int) -> tuple[str, Verdict]:
    directory = Path(tempfile.mkdtemp(prefix="zonemta-crash-"))
    redis = number % 7 == 6 and redis_program() is not None
    store = "redis" if redis else "filesystem" if number % 5 == 4 else "leveldb"
    cuts = number % 3 == 2 and not redis and shutil.which("cc") is not None
    disk = Disk(directory / "relay", directory / "scratch") if cuts else None
    async with Rounds(directory / "relay", rng, store=store, disk=disk, power_cuts=cuts) as rounds:
        for i in range(min(KILLS_A_ROUND, kills + NO_KILLS)):
            if i % 4 == 1:
                await (rounds.hung() if redis and i % 8 == 1 else rounds.at_random())
            elif i % 4 == 3:
                await (rounds.wrong_clock() if i % 12 == 3 else rounds.disturbed())
            elif i in (8, 16) and not redis:
                await (rounds.transferred() if i == 8 else rounds.restored())
            else:
                await rounds.at_point(points[(number * KILLS_A_ROUND + i) // 2 % len(points)])
        verdict = await rounds.finish()
    if verdict.lost or verdict.unnamed or verdict.problems:
        print(f"  ! left to look at: {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return store + (", power cut" if cuts else ""), verdict


def _row(verdict: Verdict) -> dict[str, object]:
    return {
        "kills": verdict.kills.total(),
        "messages": verdict.messages,
        "acknowledged": verdict.acknowledged,
        "recipients": verdict.recipients,
        "compared": verdict.compared,
        "lost": len(verdict.lost),
        "delivered_twice": verdict.repeated,
        "twice_and_not_named": len(verdict.unnamed),
        "called_uncertain": verdict.uncertain,
        "problems": len(verdict.problems),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    points = rng.sample(sorted(POINTS), len(POINTS))
    total, kills, began_s = Counter[str](), Counter[str](), monotonic_s()
    number = 0
    while kills.total() < options.kills:
        how, verdict = asyncio.run(_round(number, points, rng, options.kills))
        number += 1
        kills += verdict.kills
        row = _row(verdict)
        total += Counter({name: int(str(value)) for name, value in row.items()})
        for text in [*verdict.lost[:3], *verdict.unnamed[:3], *verdict.problems[:3]]:
            print(f"  ! {text}", file=sys.stderr)
        print(f"round {number} ({how}): {json.dumps(row)}", file=sys.stderr, flush=True)
    print(json.dumps({**total, "points": len(set(kills) & set(POINTS)), "seed": options.seed,
                      "minutes": round((monotonic_s() - began_s) / 60, 1)}))  # fmt: skip
    return 1 if total["lost"] or total["twice_and_not_named"] or total["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
